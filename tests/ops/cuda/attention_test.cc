// Attention of bf16 and f16 on CUDA, emulated, forward and all gradients, beside the CPU's kernels in f64 on
// the same rounded operands: lengths around the tiles' edges, heads of all widths, groups, masks, dropout and
// operands that lie anyhow.

#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/attention/masked_attention.h"
#include "ops/attention/packed_attention.h"
#include "runtime/device/device_backend.h"
#include "runtime/tensor/copy.h"
#include "tools/rules/local_kernel.h"
#include "tools/rules/sample_tensors.h"
#include "tools/rules/tensor_difference.h"

namespace weft {
namespace {

// How operands lie in memory. kApart: q, k and v as a product of qkv makes them, so that rows are whole
// vectors with others between. kOdd: rows that begin at no multiple of 16 bytes. kStrided: the elements of a
// head do not follow each other.
enum class Lie { kTight, kApart, kHeadsFirst, kOdd, kStrided };

struct Case {
  Shape q;
  Shape k;
  bool causal = true;
  DType dtype = DType::kBF16;
  Lie lie = Lie::kTight;
  double scale = 0;
  // Masked attention, if `mask` has dims.
  Shape mask = {};
  DType mask_dtype = DType::kBool;
  double rate = 0;

  bool masked() const { return mask.ndim() > 0; }
  std::string Text() const {
    return absl::StrCat("q ", TensorType{dtype, q}.ToString(), ", k ", TensorType{dtype, k}.ToString(),
                        causal ? ", causal" : "", ", lie ", static_cast<int>(lie), ", scale ", scale,
                        masked() ? absl::StrCat(", mask ", TensorType{mask_dtype, mask}.ToString()) : "",
                        ", rate ", rate);
  }
};

Tensor Lay(const Tensor& tensor, Lie lie, const std::shared_ptr<Allocator>& allocator) {
  const int last = tensor.ndim() - 1;
  Shape shape = tensor.shape();
  Tensor view;
  switch (lie) {
    case Lie::kTight:
      return CloneTensor(tensor, allocator);
    case Lie::kApart:
      shape.Insert(2, 3);
      view = Tensor::Empty(allocator, tensor.dtype(), shape).Select(2, 1);
      break;
    case Lie::kHeadsFirst:
      std::swap(shape[1], shape[2]);
      view = Tensor::Empty(allocator, tensor.dtype(), shape).Transpose(1, 2);
      break;
    case Lie::kOdd:
      shape[last] += 1;
      view = Tensor::Empty(allocator, tensor.dtype(), shape).Slice(last, 1, shape[last] - 1);
      break;
    case Lie::kStrided:
      shape[last] *= 2;
      shape.Insert(last + 1, 2);
      shape[last] /= 2;
      view = Tensor::Empty(allocator, tensor.dtype(), shape).Select(last + 1, 1);
      break;
  }
  CopyTensor(tensor, view);
  return view;
}

class CudaAttentionTest : public testing::Test {
 protected:
  template <class A, class R>
  std::vector<Tensor> RunOn(const std::shared_ptr<Allocator>& allocator, const Op<A, R>& op,
                            const std::vector<Tensor>& operands, Lie lie, const A& attributes,
                            const R& scalars) {
    KernelContext context = {pool_, allocator};
    std::vector<Piece> pieces;
    TensorTypes types;
    for (size_t i = 0; i < operands.size(); ++i) {
      const bool is_heads =
          operands[i].shape()[operands[i].ndim() - 1] == operands[0].shape()[operands[0].ndim() - 1];
      pieces.push_back(
          {i < 3 || is_heads ? Lay(operands[i], lie, allocator) : CloneTensor(operands[i], allocator),
           WholeBox(operands[i].shape())});
      types.push_back({operands[i].dtype(), operands[i].shape()});
    }
    std::vector<ShardBox> boxes;
    for (const TensorType& type : op.Infer(types, &attributes)) boxes.push_back(WholeBox(type.shape));
    std::vector<Tensor> outputs;
    for (const Tensor& output : RunKernel(op, context, pieces, boxes, &attributes, &scalars)) {
      outputs.push_back(OnHost(output));
    }
    return outputs;
  }

  Tensor In(DType dtype, const Tensor& tensor) { return CastTensor(tensor, dtype, cpu_); }
  // As the device's kernels get them, as numbers of f64.
  std::vector<Tensor> Wide(std::vector<Tensor> tensors) {
    for (Tensor& tensor : tensors) {
      if (tensor.dtype() != DType::kBool) tensor = In(DType::kF64, tensor);
    }
    return tensors;
  }

  // Probabilities and gradients of scores are rounded to the dtype before products, and so are results: each
  // is off by u = half of epsilon times its size, and sums of such errors grow slower than what they add up
  // to. The largest number of a result stands for the size of its sums.
  void ExpectClose(const Tensor& actual, const Tensor& expected, DType dtype, const std::string& what) {
    if (actual.dtype() == DType::kF32) {  // lse, from products that are exact but for f32's sums
      EXPECT_EQ(Difference(actual, In(DType::kF32, expected), {.tolerance = 2e-5}), "") << what;
      return;
    }
    double largest = 1;
    for (double x : expected.ToVector<double>())
      largest = std::max(largest, std::isfinite(x) ? std::abs(x) : 0);
    const double unit = dtype == DType::kBF16 ? 0x1p-9 : 0x1p-12;
    EXPECT_EQ(Difference(In(DType::kF64, actual), expected, {.tolerance = 4 * unit * largest}), "") << what;
  }

  template <class R>
  void Compare(const Case& c, const Op<AttentionAttributes, R>& op, const Op<AttentionAttributes, R>& op_grad,
               std::vector<Tensor> operands, const R& scalars) {
    const AttentionAttributes attributes = {.causal = c.causal, .scale = c.scale};
    const std::vector<Tensor> expected = RunOn(cpu_, op, Wide(operands), Lie::kTight, attributes, scalars);
    const std::vector<Tensor> actual = RunOn(cuda_, op, operands, c.lie, attributes, scalars);
    ExpectClose(actual[0], expected[0], c.dtype, absl::StrCat("y of ", c.Text()));
    ExpectClose(actual[1], expected[1], c.dtype, absl::StrCat("lse of ", c.Text()));
    operands.push_back(In(c.dtype, expected[0]));
    operands.push_back(In(DType::kF32, expected[1]));
    operands.push_back(In(c.dtype, RandomTensor({{DType::kF32, c.q}}, random_)));
    const auto d_expected = RunOn(cpu_, op_grad, Wide(operands), Lie::kTight, attributes, scalars);
    const auto d_actual = RunOn(cuda_, op_grad, operands, c.lie, attributes, scalars);
    for (size_t i = 0; i < 3; ++i) {
      ExpectClose(d_actual[i], d_expected[i], c.dtype, absl::StrCat("gradient ", i, " of ", c.Text()));
    }
  }

  void Compare(const Case& c) {
    random_.seed(7);
    std::vector<Tensor> operands;
    for (const Shape& shape : {c.q, c.k, c.k}) {
      operands.push_back(In(c.dtype, RandomTensor({{DType::kF32, shape}, -2, 2}, random_)));
    }
    if (!c.masked()) return Compare(c, kAttention, kAttentionGrad, operands, NoScalars());
    operands.push_back(RandomTensor({{c.mask_dtype, c.mask},
                                     c.mask_dtype == DType::kBool ? 0.0 : -1.0,
                                     c.mask_dtype == DType::kBool ? 2.0 : 1.0},
                                    random_));
    Compare(c, kMaskedAttention, kMaskedAttentionGrad, operands,
            DropoutScalars{.key = {.seed = 3, .stream = 9, .step = 2}, .rate = c.rate});
  }

  ThreadPool pool_{1};
  const std::shared_ptr<Allocator> cpu_ = MakeCpuAllocator();
  const std::shared_ptr<Allocator> cuda_ = MakeAllocator({DeviceType::kCuda});
  std::mt19937_64 random_;
};

TEST_F(CudaAttentionTest, LengthsAroundTheEdgesOfTiles) {
  for (int64_t length : {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 200}) {
    const DType dtype = length % 2 == 0 ? DType::kBF16 : DType::kF16;
    Compare({.q = {1, length, 1, 64}, .k = {1, length, 1, 64}, .causal = true, .dtype = dtype});
  }
  for (int64_t length : {1, 65, 128}) {
    Compare({.q = {1, length, 1, 128}, .k = {1, length, 1, 128}, .causal = true, .dtype = DType::kF16});
    Compare({.q = {1, length, 1, 64}, .k = {1, length, 1, 64}, .causal = false});
  }
}

TEST_F(CudaAttentionTest, FewerAndMoreQueriesThanKeys) {
  for (const auto& [s, t] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 200}, {17, 129}, {65, 130}, {16, 17}, {64, 65}, {100, 163}}) {
    Compare({.q = {1, s, 1, 64}, .k = {1, t, 1, 64}, .causal = true});
    Compare({.q = {1, t, 1, 40}, .k = {1, s, 1, 40}, .causal = false, .dtype = DType::kF16});
  }
}

TEST_F(CudaAttentionTest, HeadsOfAllWidths) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    // Those that are no multiple of 8 have rows that are no whole vectors; 130 has the kernels of f32.
    for (int64_t e : {1, 3, 8, 20, 40, 64, 65, 80, 128, 130}) {
      Compare({.q = {1, 35, 2, e}, .k = {1, 70, 2, e}, .causal = true, .dtype = dtype});
    }
  }
}

TEST_F(CudaAttentionTest, GroupedQueries) {
  Compare({.q = {2, 66, 2, 3, 64}, .k = {2, 70, 2, 64}, .causal = true});
  Compare({.q = {2, 33, 6, 16}, .k = {2, 33, 2, 16}, .causal = true, .dtype = DType::kF16});
  Compare({.q = {1, 130, 2, 80}, .k = {1, 40, 1, 80}, .causal = false});
}

TEST_F(CudaAttentionTest, OperandsThatLieAnyhow) {
  for (Lie lie : {Lie::kApart, Lie::kHeadsFirst, Lie::kOdd, Lie::kStrided}) {
    Compare({.q = {2, 34, 3, 64}, .k = {2, 34, 3, 64}, .causal = true, .lie = lie});
    Compare({.q = {1, 34, 2, 2, 72}, .k = {1, 50, 2, 72}, .causal = true, .dtype = DType::kF16, .lie = lie});
    Compare({.q = {2, 20, 4, 24},
             .k = {2, 20, 2, 24},
             .causal = false,
             .lie = lie,
             .mask = {2, 1, 20, 20},
             .mask_dtype = DType::kBF16});
  }
}

TEST_F(CudaAttentionTest, ScalesOfEitherSign) {
  for (double scale : {0.7, -0.3}) {
    Compare({.q = {1, 80, 1, 64}, .k = {1, 80, 1, 64}, .causal = true, .scale = scale});
    Compare({.q = {1, 20, 1, 96}, .k = {1, 40, 1, 96}, .causal = true, .dtype = DType::kF16, .scale = scale});
  }
}

TEST_F(CudaAttentionTest, MasksAndDropout) {
  struct Kind {
    Shape mask;
    DType dtype;
    bool causal;
    double rate;
  };
  for (const Kind& kind : std::vector<Kind>{{{2, 2, 66, 70}, DType::kBool, true, 0},
                                            {{2, 1, 66, 70}, DType::kBool, false, 0.2},
                                            {{1, 1, 1, 70}, DType::kBF16, false, 0},
                                            {{1, 2, 66, 1}, DType::kBF16, true, 0.5},
                                            {{1, 1, 1, 1}, DType::kBF16, true, 0.3}}) {
    for (int64_t e : {64, 100}) {
      Compare({.q = {2, 66, 2, e},
               .k = {2, 70, 2, e},
               .causal = kind.causal,
               .mask = kind.mask,
               .mask_dtype = kind.dtype,
               .rate = kind.rate});
    }
  }
  Compare({.q = {1, 130, 2, 2, 32},
           .k = {1, 130, 2, 32},
           .dtype = DType::kF16,
           .mask = {1, 2, 2, 130, 130},
           .mask_dtype = DType::kF16,
           .rate = 0.1});
}

// Gradients are written between each other.
TEST_F(CudaAttentionTest, PackedOperandsAndGradients) {
  const AttentionAttributes attributes = {.causal = true};
  for (const auto& [dtype, e] : std::vector<std::pair<DType, int64_t>>{
           {DType::kBF16, 64}, {DType::kF16, 20}, {DType::kBF16, 136}, {DType::kF32, 64}}) {
    random_.seed(7);
    const Tensor qkv = In(dtype, RandomTensor({{DType::kF32, {2, 70, 3, 2, e}}, -2, 2}, random_));
    const Tensor dy = In(dtype, RandomTensor({{DType::kF32, {2, 70, 2, e}}}, random_));
    std::vector<Tensor> parts = {qkv.Select(2, 0), qkv.Select(2, 1), qkv.Select(2, 2)};
    const auto expected = RunOn(cuda_, kAttention, parts, Lie::kTight, attributes, NoScalars());
    const auto actual = RunOn(cuda_, kPackedAttention, {qkv}, Lie::kTight, attributes, NoScalars());
    EXPECT_EQ(Difference(actual[0], expected[0], {.tolerance = 0}), "") << e;
    EXPECT_EQ(Difference(actual[1], expected[1], {.tolerance = 0}), "") << e;
    for (const Tensor& more : {expected[0], expected[1], dy}) parts.push_back(more);
    const auto grads = RunOn(cuda_, kAttentionGrad, parts, Lie::kTight, attributes, NoScalars());
    const auto packed = RunOn(cuda_, kPackedAttentionGrad, {qkv, expected[0], expected[1], dy}, Lie::kTight,
                              attributes, NoScalars());
    for (int part = 0; part < 3; ++part) {
      EXPECT_EQ(Difference(packed[0].Select(2, part), grads[part], {.tolerance = 0}), "")
          << e << ", part " << part;
    }
  }
}

// Hidden by a bool mask, and by -inf that is added: y = 0, lse = -inf, no gradient.
TEST_F(CudaAttentionTest, QueriesThatSeeNoKey) {
  random_.seed(7);
  std::vector<Tensor> operands;
  for (int i = 0; i < 3; ++i) {
    operands.push_back(In(DType::kBF16, RandomTensor({{DType::kF32, {1, 80, 1, 64}}}, random_)));
  }
  const Case c = {.q = {1, 80, 1, 64}, .k = {1, 80, 1, 64}, .mask = {1, 1, 80, 80}};
  for (DType dtype : {DType::kBool, DType::kBF16}) {
    const Tensor mask = Tensor::Empty(cpu_, dtype, c.mask);
    FillTensor(mask, dtype == DType::kBool ? 1 : 0);
    const double hidden = dtype == DType::kBool ? 0 : -std::numeric_limits<double>::infinity();
    FillTensor(mask.Slice(2, 5, 1), hidden);                   // one query sees nothing
    FillTensor(mask.Slice(3, 0, 70).Slice(2, 75, 5), hidden);  // these see the last tile alone
    std::vector<Tensor> with_mask = operands;
    with_mask.push_back(mask);
    Compare(c, kMaskedAttention, kMaskedAttentionGrad, with_mask, DropoutScalars());
    const auto y = RunOn(cuda_, kMaskedAttention, with_mask, Lie::kTight, AttentionAttributes{.causal = true},
                         DropoutScalars());
    EXPECT_EQ(y[1].ToVector<double>()[5], -std::numeric_limits<double>::infinity());
    EXPECT_EQ(y[0].ToVector<double>()[5 * 64], 0);
  }
}

TEST_F(CudaAttentionTest, WithoutQueriesOrKeys) {
  for (const auto& [q, k] : std::vector<std::pair<Shape, Shape>>{{{2, 3, 2, 8}, {2, 0, 2, 8}},
                                                                 {{2, 0, 2, 8}, {2, 5, 2, 8}},
                                                                 {{0, 3, 2, 8}, {0, 5, 2, 8}},
                                                                 {{1, 3, 0, 8}, {1, 5, 0, 8}}}) {
    Compare({.q = q, .k = k, .causal = false});
  }
}

// A query of NaN makes its own row NaN; scores far apart, and some beyond f32, overflow nothing else.
TEST_F(CudaAttentionTest, ExtremeNumbersStayInTheirRows) {
  random_.seed(7);
  std::vector<Tensor> operands;
  for (int i = 0; i < 3; ++i) {
    operands.push_back(In(DType::kBF16, RandomTensor({{DType::kF32, {1, 70, 1, 64}}}, random_)));
  }
  FillTensor(operands[0].Slice(1, 3, 1), std::numeric_limits<double>::quiet_NaN());
  FillTensor(operands[0].Slice(1, 40, 1), 1e3);
  FillTensor(operands[0].Slice(1, 41, 1), -1e4);
  const AttentionAttributes attributes = {.causal = true};
  const auto expected = RunOn(cpu_, kAttention, Wide(operands), Lie::kTight, attributes, NoScalars());
  const auto actual = RunOn(cuda_, kAttention, operands, Lie::kTight, attributes, NoScalars());
  ExpectClose(actual[0], expected[0], DType::kBF16, "y");
  ExpectClose(actual[1], expected[1], DType::kBF16, "lse");
  EXPECT_TRUE(std::isnan(actual[0].ToVector<double>()[3 * 64]));
  EXPECT_FALSE(std::isnan(actual[0].ToVector<double>()[4 * 64]));
}

}  // namespace
}  // namespace weft
