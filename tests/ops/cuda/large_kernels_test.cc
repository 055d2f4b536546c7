// CUDA kernels, emulated, on what the ops' small samples do not reach: several tiles and blocks, runs of
// every alignment, pieces of a whole. Each beside the CPU's kernel of the same op.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/attention/masked_attention.h"
#include "ops/attention/rotary.h"
#include "ops/convolution/conv.h"
#include "ops/indexing/embedding.h"
#include "ops/indexing/gather.h"
#include "ops/indexing/index_select.h"
#include "ops/indexing/sort.h"
#include "ops/indexing/top_k.h"
#include "ops/op/kernel.h"
#include "ops/product/contract.h"
#include "ops/shape/flip_roll.h"
#include "ops/shape/pad.h"
#include "ops/shape/slice.h"
#include "runtime/device/device_backend.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tools/rules/local_kernel.h"
#include "tools/rules/sample_tensors.h"
#include "tools/rules/tensor_difference.h"

namespace weft {
namespace {

// A random operand, whole, or the piece at `offset` of a tensor of shape `global`.
struct Operand {
  DType dtype = DType::kF32;
  Shape shape;
  double low = -1;
  double high = 1;
  Shape global = {};
  Shape offset = {};

  ShardBox Box() const { return global.ndim() == 0 ? WholeBox(shape) : ShardBox{global, offset, shape}; }
};

class LargeKernelsTest : public testing::Test {
 protected:
  // Both kernels on the same operands; `output_boxes` empty: whole ones.
  template <class A, class R>
  void Compare(const Op<A, R>& op, const std::vector<Operand>& operands, const A& attributes,
               const R& scalars, std::vector<ShardBox> output_boxes = {}) {
    std::mt19937_64 random(11);
    std::vector<Tensor> values;
    TensorTypes types;
    for (const Operand& operand : operands) {
      values.push_back(RandomTensor({{operand.dtype, operand.shape}, operand.low, operand.high}, random));
      types.push_back({operand.dtype, operand.Box().global_shape});
    }
    if (output_boxes.empty()) {
      for (const TensorType& type : op.Infer(types, &attributes))
        output_boxes.push_back(WholeBox(type.shape));
    }
    const auto run = [&](const std::shared_ptr<Allocator>& allocator) {
      KernelContext context = {pool_, allocator};
      std::vector<Piece> pieces;
      for (size_t i = 0; i < operands.size(); ++i) {
        pieces.push_back({CloneTensor(values[i], cpu_), operands[i].Box()});
        if (allocator != cpu_) {
          const Tensor there = Tensor::Empty(allocator, values[i].dtype(), values[i].shape());
          CopyTensor(values[i], there);
          pieces.back().tensor = there;
        }
      }
      std::vector<Tensor> outputs;
      for (const Tensor& output : RunKernel(op, context, pieces, output_boxes, &attributes, &scalars)) {
        outputs.push_back(OnHost(output));
      }
      return outputs;
    };
    const std::vector<Tensor> expected = run(cpu_);
    const std::vector<Tensor> actual = run(cuda_);
    double tolerance = 0;
    for (const Operand& operand : operands) tolerance = std::max(tolerance, Tolerance(operand.dtype));
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool floating = IsFloating(expected[i].dtype());
      EXPECT_EQ(Difference(actual[i], expected[i],
                           {.tolerance = floating ? scale_ * tolerance : 0, .signed_zeros = false}),
                "")
          << op.name() << ", output " << i;
    }
  }

  ThreadPool pool_{1};
  const std::shared_ptr<Allocator> cpu_ = MakeCpuAllocator();
  const std::shared_ptr<Allocator> cuda_ = MakeAllocator({DeviceType::kCuda});
  double scale_ = 4;  // sums are longer than the ops' samples have
};

std::vector<Operand> GradOperands(std::vector<Operand> operands, const Shape& lse) {
  const Operand q = operands[0];
  operands.push_back(q);  // y
  const DType statistic = q.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  operands.push_back({statistic, lse, 4, 6});  // lse, such that probabilities are at most about 1
  operands.push_back(q);                       // dy
  return operands;
}

TEST_F(LargeKernelsTest, AttentionOverSeveralTiles) {
  // One head a query head; grouped; merged heads; elements beyond one and two tiles' width.
  struct Case {
    Shape q, k, lse;
    bool causal;
    DType dtype;
  };
  for (const Case& c :
       std::vector<Case>{{{1, 129, 2, 8}, {1, 129, 2, 8}, {1, 2, 129}, true, DType::kF32},
                         {{1, 65, 1, 2, 20}, {1, 150, 1, 20}, {1, 1, 2, 65}, true, DType::kF64},
                         {{1, 70, 2, 96}, {1, 66, 1, 96}, {1, 2, 70}, false, DType::kBF16},
                         {{1, 40, 1, 130}, {1, 64, 1, 130}, {1, 1, 40}, true, DType::kF32},
                         {{1, 20, 1, 256}, {1, 33, 1, 256}, {1, 1, 20}, false, DType::kF64}}) {
    const std::vector<Operand> operands = {{c.dtype, c.q}, {c.dtype, c.k}, {c.dtype, c.k}};
    Compare(kAttention, operands, AttentionAttributes{.causal = c.causal}, NoScalars());
    Compare(kAttentionGrad, GradOperands(operands, c.lse), AttentionAttributes{.causal = c.causal},
            NoScalars());
  }
}

TEST_F(LargeKernelsTest, AttentionWithWideHeadsIsRefused) {
  EXPECT_EQ(
      MessageOf([&] {
        Compare(kAttention,
                {{DType::kF32, {1, 2, 1, 257}}, {DType::kF32, {1, 2, 1, 257}}, {DType::kF32, {1, 2, 1, 257}}},
                AttentionAttributes(), NoScalars());
      }),
      "attention on cuda: heads of at most 256 elements, got k f32[1, 2, 1, 257]");
}

TEST_F(LargeKernelsTest, MaskedAttentionOverSeveralTiles) {
  const Operand q = {DType::kF32, {2, 70, 2, 6}};
  const Operand k = {DType::kF32, {2, 131, 2, 6}};
  struct Case {
    Operand mask;
    bool causal;
    double rate;
  };
  for (const Case& c : std::vector<Case>{{{DType::kF32, {2, 1, 70, 131}}, true, 0},
                                         {{DType::kF32, {1, 2, 1, 131}}, false, 0.3},
                                         {{DType::kF32, {2, 2, 70, 1}}, false, 0.5},
                                         {{DType::kF32, {1, 1, 1, 1}}, true, 0},
                                         {{DType::kBool, {2, 1, 70, 131}, 0, 2}, true, 0.2},
                                         {{DType::kBool, {1, 1, 1, 1}, 0, 1}, false, 0}}) {
    const AttentionAttributes attributes = {.causal = c.causal};
    const DropoutScalars scalars = {.key = {.seed = 3, .stream = 9, .step = 2}, .rate = c.rate};
    const std::vector<Operand> operands = {q, k, k, c.mask};
    Compare(kMaskedAttention, operands, attributes, scalars);
    const std::vector<Operand> grad = GradOperands(operands, {2, 2, 70});
    Compare(kMaskedAttentionGrad, grad, attributes, scalars);
    if (c.mask.dtype != DType::kBool) Compare(kMaskedAttentionMaskGrad, grad, attributes, scalars);
  }
}

// Dropout's bits follow from the place in the whole.
TEST_F(LargeKernelsTest, MaskedAttentionOfAPiece) {
  const Operand q = {DType::kF32, {2, 5, 2, 4}, -1, 1, {6, 5, 8, 4}, {2, 0, 4, 0}};
  const Operand k = {DType::kF32, {2, 7, 2, 4}, -1, 1, {6, 7, 8, 4}, {2, 0, 4, 0}};
  const Operand mask = {DType::kF32, {1, 1, 5, 7}};
  const ShardBox lse = {{6, 8, 5}, {2, 4, 0}, {2, 2, 5}};
  Compare(kMaskedAttention, {q, k, k, mask}, AttentionAttributes(),
          DropoutScalars{.key = {.seed = 3}, .rate = 0.5, .batch_offset = 7}, {q.Box(), lse});
}

TEST_F(LargeKernelsTest, ContractionsOfManyDims) {
  // Batches over two dims that do not merge; a bias; sums over two dims that lie apart.
  Compare(kContract, {{DType::kF32, {3, 9, 4, 5}}, {DType::kF32, {3, 7, 4, 5}}},
          ContractAttributes{"bshe", "bthe", "bhst"}, NoScalars());
  Compare(kContract, {{DType::kBF16, {3, 9, 4, 5}}, {DType::kBF16, {3, 9, 6}}},
          ContractAttributes{"bshe", "bsd", "hed"}, NoScalars());
  Compare(kContract, {{DType::kF64, {4, 33, 5}}, {DType::kF64, {5, 4, 17}}},
          ContractAttributes{"amb", "ban", "mn"}, NoScalars());
  Compare(kLinear, {{DType::kF16, {2, 33, 12}}, {DType::kF16, {12, 3, 5}}, {DType::kF16, {3, 5}}},
          ContractAttributes{"bsd", "dhe", "bshe"}, NoScalars());
  Compare(kLinear, {{DType::kF64, {2, 33, 12}}, {DType::kF64, {20, 12}}, {DType::kF64, {20}}},
          ContractAttributes{"bsd", "vd", "bsv"}, NoScalars());
}

// With what the library does on the side, and where it does not: sums of columns that are no rows of the
// product or, by the emulator, come in threes; a gelu whose rows are no eights; a weight that is transposed.
TEST_F(LargeKernelsTest, GradientsOfLinearLayers) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const Operand x = {dtype, {2, 33, 16}};
    for (int64_t heads : {int64_t{2}, int64_t{3}}) {
      const Operand dy = {dtype, {2, 33, heads, 5}};
      Compare(kLinearWeightGrad, {x, dy}, LinearWeightGradAttributes{{"bsd", "bshe", "dhe"}, 2}, NoScalars());
      Compare(kLinearWeightGrad, {x, dy}, LinearWeightGradAttributes{{"bsd", "bshe", "dhe"}, 1}, NoScalars());
      Compare(kLinearWeightGrad, {x, dy}, LinearWeightGradAttributes{{"bsd", "bshe", "deh"}, 2}, NoScalars());
    }
    Compare(kLinearWeightGrad, {x, {dtype, {2, 33, 20}}}, LinearWeightGradAttributes{{"bsd", "bsv", "vd"}, 1},
            NoScalars());
    for (int64_t hidden : {int64_t{24}, int64_t{27}}) {
      const Operand h = {dtype, {2, 33, hidden}, -3, 3};
      Compare(kGeluLinear, {h, {dtype, {hidden, 16}}, {dtype, {16}}}, ContractAttributes{"bsf", "fd", "bsd"},
              NoScalars());
      Compare(kGeluLinearInputGrad, {x, {dtype, {hidden, 16}}, h}, ContractAttributes{"bsd", "fd", "bsf"},
              NoScalars());
      Compare(kGeluLinearInputGrad, {x, {dtype, {16, hidden}}, h}, ContractAttributes{"bsd", "df", "bsf"},
              NoScalars());
    }
  }
}

TEST_F(LargeKernelsTest, EmbeddingOfAPieceOfTheVocabulary) {
  const Operand tokens = {DType::kI64, {3, 700}, 0, 23};
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int64_t width : {int64_t{5}, int64_t{24}}) {
      const Operand table = {dtype, {9, width}, -1, 1, {23, width}, {8, 0}};
      Compare(kEmbedding, {tokens, table}, NoAttributes(), NoScalars(), {WholeBox({3, 700, width})});
      // Some 90 positions a token, and 700 of one: longer than a block puts in order.
      Compare(kEmbeddingGrad, {tokens, {dtype, {3, 700, width}}}, EmbeddingGradAttributes{23}, NoScalars(),
              {table.Box()});
      Compare(kEmbeddingGrad, {{DType::kI32, {3, 700}, 2, 3}, {dtype, {3, 700, width}}},
              EmbeddingGradAttributes{4}, NoScalars());
    }
  }
}

TEST_F(LargeKernelsTest, RotaryOfAPieceOfTheSequence) {
  for (bool interleaved : {false, true}) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      for (int64_t elements : {int64_t{6}, int64_t{32}}) {
        const Operand x = {dtype, {2, 9, 3, elements}, -1, 1, {2, 1000, 3, elements}, {0, 900, 0, 0}};
        Compare(kRotary, {x}, RotaryAttributes{.interleaved = interleaved}, NoScalars(), {x.Box()});
      }
    }
  }
}

TEST_F(LargeKernelsTest, MovementOfPieces) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kU8}) {
    const Operand x = {dtype, {4, 6, 16}, 0, 9, {10, 6, 16}, {3, 0, 0}};
    Compare(kPad, {x}, PadAttributes{{2, 1, 0}, {3, 0, 0}}, NoScalars(),
            {{{15, 7, 16}, {4, 0, 0}, {8, 7, 16}}});
    Compare(kFlip, {x}, FlipAttributes{{0, 2}}, NoScalars(), {{{10, 6, 16}, {1, 0, 0}, {7, 6, 16}}});
    Compare(kRoll, {x}, RollAttributes{.dim = 0, .shift = -13}, NoScalars(),
            {{{10, 6, 16}, {0, 0, 0}, {10, 6, 16}}});
    Compare(kIndexSelect, {x, {DType::kI64, {5}, 0, 10}}, IndexAttributes{.dim = 0}, NoScalars(),
            {WholeBox({5, 6, 16})});
    Compare(kGather, {x, {DType::kI32, {5, 6, 16}, 0, 10}}, GatherAttributes{.dim = 0}, NoScalars(),
            {WholeBox({5, 6, 16})});
  }
  Compare(kSliceGrad, {{DType::kF32, {4, 6}, 0, 9, {10, 6}, {3, 0}}}, SliceGradAttributes{0, 2, 20},
          NoScalars(), {{{20, 6}, {4, 0}, {9, 6}}});
}

// A view of a dim that is split is a copy, on every device.
TEST_F(LargeKernelsTest, SliceOfAPiece) {
  for (int64_t start : {int64_t{0}, int64_t{2}, int64_t{6}}) {
    const Operand x = {DType::kF32, {4, 6}, 0, 9, {10, 6}, {3, 0}};
    const std::vector<ShardBox> y = {WholeBox({4, 6})};
    std::mt19937_64 random(5);
    const Tensor values = RandomTensor({{x.dtype, x.shape}, x.low, x.high}, random);
    const Tensor there = Tensor::Empty(cuda_, x.dtype, x.shape);
    CopyTensor(values, there);
    const SliceAttributes attributes = {.dim = 0, .start = start, .length = 4};
    const auto run = [&](const Tensor& tensor, const std::shared_ptr<Allocator>& allocator) {
      KernelContext context = {pool_, allocator};
      KernelCallBase base = {.context = context,
                             .inputs = {},
                             .outputs = {},
                             .input_boxes = {},
                             .output_boxes = {},
                             .erased_attributes = &attributes,
                             .erased_scalars = nullptr};
      std::vector<Tensor> outputs(1);
      const std::vector<Tensor> inputs = {tensor};
      const std::vector<ShardBox> boxes = {x.Box()};
      base.inputs = inputs;
      base.outputs = absl::MakeSpan(outputs);
      base.input_boxes = boxes;
      base.output_boxes = y;
      kSlice.Invoke(FindKernel(kSlice, DeviceType::kCpu), base);
      return OnHost(outputs[0]);
    };
    EXPECT_EQ(Difference(run(there, cuda_), run(values, cpu_), {.signed_zeros = true}), "") << start;
  }
}

TEST_F(LargeKernelsTest, SumsByIndex) {
  const Operand index = {DType::kI64, {600}, 0, 7};
  Compare(kIndexAdd, {index, {DType::kF32, {2, 600, 8}}}, IndexAddAttributes{.dim = 1, .extent = 7},
          NoScalars());
  Compare(kIndexAdd, {index, {DType::kI32, {600, 3}, -9, 9}}, IndexAddAttributes{.dim = 0, .extent = 7},
          NoScalars());
  Compare(kScatterSum, {{DType::kI64, {2, 90, 3}, 0, 5}, {DType::kF16, {2, 90, 3}}},
          ScatterSumAttributes{.dim = 1, .extent = 5}, NoScalars());
}

// The CPU refuses such a list (tests/ops/indexing/gather_test.cc). Of a whole dim, and of the piece of its last two.
TEST_F(LargeKernelsTest, AnIndexThatIsListedTwiceGivesNan) {
  const Tensor list = CloneTensor(Tensor::FromValues<int64_t>({3}, {3, 1, 3}), cuda_);
  const std::vector<double> values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32}) {
    const double bad = IsFloating(dtype) ? NAN : 0;
    const auto as = [&](const std::vector<double>& elements) {
      return CastTensor(Tensor::FromValues<double>({2, 4, 2}, elements), dtype, cpu_);
    };
    const Tensor x = CloneTensor(as(values), cuda_);
    for (const bool to_add : {false, true}) {
      const double zero = to_add ? -0.0 : 0.0;
      const Tensor expected = as({1, 2, zero, zero, 5, 6, bad, bad, 9, 10, zero, zero, 13, 14, bad, bad});
      const IndexZeroAttributes attributes = {.dim = 1, .to_add = to_add};
      const NoScalars scalars;
      for (const int64_t first : {0, 2}) {
        KernelContext context = {pool_, cuda_};
        const int64_t length = 4 - first;
        const ShardBox box = {{2, 4, 2}, {0, first, 0}, {2, length, 2}};
        const std::vector<Piece> pieces = {{x.Slice(1, first, length), box}, {list, WholeBox({3})}};
        const std::vector<Tensor> y = RunKernel(kIndexZero, context, pieces, {box}, &attributes, &scalars);
        EXPECT_EQ(Difference(OnHost(y[0]), CloneTensor(expected.Slice(1, first, length), cpu_),
                             {.signed_zeros = true}),
                  "")
            << dtype << ", from " << first;
      }
    }
  }
}

TEST_F(LargeKernelsTest, SortOfLongRows) {
  // Many equals: the order among them shows.
  for (bool descending : {false, true}) {
    Compare(kSort, {{DType::kI32, {3, 2500}, -20, 20}}, SortAttributes{1, descending}, NoScalars());
    Compare(kSort, {{DType::kF32, {1030, 2}}}, SortAttributes{0, descending}, NoScalars());
    Compare(kTopK, {{DType::kBF16, {2, 1500, 3}}}, TopKAttributes{1, 40, descending}, NoScalars());
  }
  Compare(kTopKCandidates, {{DType::kF32, {4, 5}, -1, 1, {4, 20}, {0, 10}}}, TopKAttributes{1, 8, true},
          NoScalars(), {WholeBox({4, 8}), WholeBox({4, 8})});
}

TEST_F(LargeKernelsTest, Convolutions) {
  for (const ConvAttributes& a :
       {ConvAttributes{}, ConvAttributes{.padding = {1, 1}, .groups = 4},
        ConvAttributes{.stride = {2, 3}, .padding = {2, 1}, .dilation = {2, 1}, .groups = 2}}) {
    const int64_t channels = a.groups * 3;
    const Operand x = {DType::kF32, {3, channels, 13, 17}};
    const Operand w = {DType::kF32, {4, 3, 3, 5}};
    const SpatialPair y = ConvOutputExtents({13, 17}, {3, 5}, a);
    const Operand dy = {DType::kF32, {3, 4, y[0], y[1]}};
    Compare(kConv, {x, w, {DType::kF32, {4}}}, a, NoScalars());
    Compare(kConvDataGrad, {dy, w}, ConvGradAttributes{a, {13, 17}}, NoScalars());
    Compare(kConvWeightGrad, {x, dy}, ConvGradAttributes{a, {3, 5}}, NoScalars());
  }
}

}  // namespace
}  // namespace weft
