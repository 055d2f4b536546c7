// CUDA kernels of indices, emulated: in which order sums add, what an index outside its range leaves behind, and the
// workspace of selections.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/indexing/gather.h"
#include "ops/indexing/index_select.h"
#include "ops/indexing/scatter_reduce.h"
#include "ops/indexing/top_k.h"
#include "ops/op/kernel.h"
#include "runtime/base/thread_pool.h"
#include "runtime/device/device_backend.h"
#include "runtime/tensor/copy.h"
#include "tools/rules/local_kernel.h"
#include "tools/rules/tensor_difference.h"

namespace weft {
namespace {

class IndexingTest : public testing::Test {
 protected:
  // What the device's kernel makes of whole operands, on the CPU; `boxes` empty: whole outputs.
  template <class A>
  std::vector<Tensor> Run(const Op<A>& op, const std::vector<Tensor>& operands, const A& attributes,
                          std::vector<ShardBox> boxes = {}) {
    KernelContext context = {pool_, cuda_};
    std::vector<Piece> pieces;
    TensorTypes types;
    for (const Tensor& operand : operands) {
      pieces.push_back({CloneTensor(operand, cuda_), WholeBox(operand.shape())});
      types.push_back({operand.dtype(), operand.shape()});
    }
    if (boxes.empty()) {
      for (const TensorType& type : op.Infer(types, &attributes)) boxes.push_back(WholeBox(type.shape));
    }
    const NoScalars scalars;
    std::vector<Tensor> outputs;
    for (const Tensor& output : RunKernel(op, context, pieces, boxes, &attributes, &scalars)) {
      outputs.push_back(OnHost(output));
    }
    return outputs;
  }

  // Numbers in the dtype, on the CPU.
  Tensor Of(DType dtype, const Shape& shape, const std::vector<double>& values) {
    return CastTensor(Tensor::FromValues<double>(shape, values), dtype, cpu_);
  }

  ThreadPool pool_{1};
  const std::shared_ptr<Allocator> cpu_ = MakeCpuAllocator();
  const std::shared_ptr<Allocator> cuda_ = MakeAllocator({DeviceType::kCuda});
};

// The sums of src [1300, width] at the places of an index, in ascending order, in float.
std::vector<double> FloatSums(const std::vector<int64_t>& index, const std::vector<double>& src,
                              int64_t slots, int64_t width) {
  std::vector<float> sums(static_cast<size_t>(slots * width), 0.0F);
  for (size_t i = 0; i < src.size(); ++i) {
    const auto place = static_cast<int64_t>(i) / width, column = static_cast<int64_t>(i) % width;
    sums[static_cast<size_t>(index[static_cast<size_t>(place)] * width + column)] +=
        static_cast<float>(src[i]);
  }
  return std::vector<double>(sums.begin(), sums.end());
}

// 260 places of one index and 1040 of another: fewer and more than a block puts in order by comparing them. The
// numbers are such that the order of adding shows.
TEST_F(IndexingTest, SumsAreInAscendingOrder) {
  constexpr int64_t kTerms = 1300, kSlots = 1000;
  std::vector<int64_t> values(kTerms);
  for (int64_t j = 0; j < kTerms; ++j) values[static_cast<size_t>(j)] = j % 5 == 0 ? 1 : 900;
  const Tensor index = Tensor::FromValues<int64_t>({kTerms}, values);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t width : {1, 3, 16}) {
      std::vector<double> numbers(static_cast<size_t>(kTerms * width));
      for (size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = (static_cast<double>(i * 7919 % 4096) / 4096 - 0.4) * (i % 7 == 0 ? 1e4 : 1);
      }
      const Tensor src = Of(dtype, {kTerms, width}, numbers);
      const std::vector<double> sums = FloatSums(values, src.ToVector<double>(), kSlots, width);
      const Tensor added = Run(kIndexAdd, {index, src}, {.dim = 0, .extent = kSlots})[0];
      EXPECT_EQ(Difference(added, Of(dtype, {kSlots, width}, sums), {}), "")
          << DTypeName(dtype) << " " << width;
      if (width > 1) continue;
      const Tensor list = Run(kScatterSum, {index, src.Reshape({kTerms})}, {.dim = 0, .extent = kSlots})[0];
      EXPECT_EQ(Difference(list, Of(dtype, {kSlots}, sums), {}), "") << DTypeName(dtype);
    }
  }
}

// Of one dim: the workspace is that of the places, not of the slots, and the sums are the same. More places than a block sorts in
// shared memory, of which many share an index; some are outside the range.
TEST_F(IndexingTest, FewPlacesAmongManySlotsTakeWorkspaceForThePlaces) {
  constexpr int64_t kTerms = 1100, kSlots = 100'000;
  std::vector<int64_t> places(kTerms);
  std::vector<double> numbers(kTerms);
  for (int64_t j = 0; j < kTerms; ++j) {
    const auto at = static_cast<size_t>(j);
    places[at] = j % 5 == 0 ? 7 : j % 5 == 1 ? kSlots - 2 : j * 7919 % (kSlots - 10) + 5;
    numbers[at] = (static_cast<double>(j * 7919 % 4096) / 4096 - 0.4) * (j % 7 == 0 ? 1e4 : 1);
  }
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32}) {
    const Tensor src = Of(dtype, {kTerms}, numbers);
    std::vector<double> sums = FloatSums(places, src.ToVector<double>(), kSlots, 1);
    std::vector<int64_t> listed = places;
    const auto spoil = [&](size_t at, int64_t bad, size_t nearest) {
      ASSERT_EQ(std::count(places.begin(), places.end(), places[at]), 1);
      sums[static_cast<size_t>(places[at])] = 0;
      if (IsFloating(dtype)) sums[nearest] = NAN;
      listed[at] = bad;
    };
    spoil(/*at=*/3, /*bad=*/-1, /*nearest=*/0);
    spoil(/*at=*/1002, /*bad=*/kSlots, /*nearest=*/kSlots - 1);
    const Tensor index = Tensor::FromValues<int64_t>({kTerms}, listed);
    const Tensor expected = Of(dtype, {kSlots}, sums);
    cuda_->ResetPeak();
    const int64_t live = cuda_->stats().live_bytes;
    const Tensor added = Run(kIndexAdd, {index, src}, {.dim = 0, .extent = kSlots})[0];
    EXPECT_LT(cuda_->stats().peak_bytes - live, 1'000'000) << DTypeName(dtype);
    EXPECT_EQ(Difference(added, expected, {}), "") << DTypeName(dtype);
    const Tensor summed = Run(kScatterSum, {index, src}, {.dim = 0, .extent = kSlots})[0];
    EXPECT_EQ(Difference(summed, expected, {}), "") << DTypeName(dtype);
  }
}

// Of blocks and of one dim; those of i32 wrap.
TEST_F(IndexingTest, SumsOfIntegersAreExact) {
  constexpr int64_t kTerms = 600, kSlots = 7;
  for (const Shape& shape : {Shape{2, kTerms, 3}, Shape{1, kTerms, 1}}) {
    const auto count = static_cast<size_t>(shape.num_elements());
    std::vector<int64_t> places(count);
    std::vector<double> numbers(count);
    std::vector<int64_t> sums(static_cast<size_t>(shape[0] * kSlots * shape[2]), 0);
    for (size_t i = 0; i < count; ++i) {
      const auto at = static_cast<int64_t>(i);
      places[i] = at * 31 % 11 % kSlots;
      const int64_t number = (at * 7919 % 4096 - 2048) * 1000003;
      numbers[i] = static_cast<double>(number);
      const int64_t outer = at / shape[2] / kTerms;
      sums[static_cast<size_t>((outer * kSlots + places[i]) * shape[2] + at % shape[2])] += number;
    }
    std::vector<double> exact, wrapped;
    for (const int64_t sum : sums) {
      exact.push_back(static_cast<double>(sum));
      wrapped.push_back(static_cast<double>(static_cast<int32_t>(static_cast<uint32_t>(sum))));
    }
    const Shape y = {shape[0], kSlots, shape[2]};
    for (const DType dtype : {DType::kI64, DType::kI32}) {
      const Tensor index = Tensor::FromValues<int64_t>(shape, places);
      const Tensor actual =
          Run(kScatterSum, {index, Of(dtype, shape, numbers)}, {.dim = 1, .extent = kSlots})[0];
      EXPECT_EQ(Difference(actual, Of(dtype, y, dtype == DType::kI64 ? exact : wrapped), {}), "")
          << DTypeName(dtype) << " " << y.ToString();
    }
  }
}

// The three greatest along a dim of 64, of equals those that come first: as values and as indices.
struct Greatest {
  std::vector<double> values;
  std::vector<double> indices;

  Greatest(const std::vector<double>& x, int64_t outer, int64_t inner)
      : values(static_cast<size_t>(outer * 3 * inner)), indices(values.size()) {
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t k = 0; k < inner; ++k) {
        const auto at = [&](int64_t i) { return x[static_cast<size_t>((o * 64 + i) * inner + k)]; };
        std::vector<int64_t> order(64);
        for (int64_t i = 0; i < 64; ++i) order[static_cast<size_t>(i)] = i;
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return at(a) > at(b); });
        for (int64_t i = 0; i < 3; ++i) {
          const auto to = static_cast<size_t>((o * 3 + i) * inner + k);
          values[to] = at(order[static_cast<size_t>(i)]);
          indices[to] = static_cast<double>(order[static_cast<size_t>(i)]);
        }
      }
    }
  }
};

// 30000 rows of 64 bytes, whose items at 24 bytes have 46 MB together: rows that lie one after the other, side by side,
// and both.
TEST_F(IndexingTest, SelectionsOfManyRowsTakeBoundedWorkspace) {
  struct Case {
    int64_t outer, inner;
  };
  for (const Case& c : std::vector<Case>{{30000, 1}, {1, 30000}, {3, 10000}}) {
    std::vector<double> numbers(static_cast<size_t>(c.outer * 64 * c.inner));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i * 7919 % 509 % 251);
    const Tensor x = Of(DType::kU8, {c.outer, 64, c.inner}, numbers);
    cuda_->ResetPeak();
    const int64_t live = cuda_->stats().live_bytes;
    const std::vector<Tensor> best = Run(kTopK, {x}, TopKAttributes{.dim = 1, .k = 3, .largest = true});
    EXPECT_LT(cuda_->stats().peak_bytes - live, 40'000'000) << c.outer;
    const Greatest expected(numbers, c.outer, c.inner);
    const Shape y = {c.outer, 3, c.inner};
    EXPECT_EQ(Difference(best[0], Of(DType::kU8, y, expected.values), {}), "") << c.outer;
    EXPECT_EQ(Difference(best[1], Of(DType::kI64, y, expected.indices), {}), "") << c.outer;
  }
}

// The CPU's kernels refuse them (tests/ops/indexing/gather_test.cc). Here each makes the place nearest to it nan; of integers
// nothing is written.
class BadIndicesTest : public IndexingTest {
 protected:
  // `floating` and `integers`: what y is to be.
  template <class A>
  void Expect(const Op<A>& op, const std::vector<Tensor>& operands, const A& attributes, const Shape& shape,
              const std::vector<double>& floating, const std::vector<double>& integers) {
    const DType dtype = operands.back().dtype();
    const Tensor expected = Of(dtype, shape, IsFloating(dtype) ? floating : integers);
    EXPECT_EQ(Difference(Run(op, operands, attributes)[0], expected, {}), "")
        << op.name() << " of " << DTypeName(dtype);
  }

  const DType dtypes_[5] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32};
  const Tensor list_ = Tensor::FromValues<int64_t>({3}, {0, 4, -1});
  const Tensor block_ = Tensor::FromValues<int64_t>({2, 3}, {0, 4, -1, 1, 1, 2});
};

TEST_F(BadIndicesTest, MakeSumsNan) {
  for (const DType dtype : dtypes_) {
    const Tensor src = Of(dtype, {2, 3}, {1, 2, 3, 4, 5, 6});
    Expect(kScatterSum, {list_, Of(dtype, {3}, {1, 2, 3})}, {.dim = 0, .extent = 4}, {4}, {NAN, 0, 0, NAN},
           {1, 0, 0, 0});
    Expect(kScatterSum, {block_, src}, {.dim = 1, .extent = 4}, {2, 4}, {NAN, 0, 0, NAN, 0, 9, 6, 0},
           {1, 0, 0, 0, 0, 9, 6, 0});
    Expect(kIndexAdd, {list_, src}, {.dim = 1, .extent = 4}, {2, 4}, {NAN, 0, 0, NAN, NAN, 0, 0, NAN},
           {1, 0, 0, 0, 4, 0, 0, 0});
  }
}

TEST_F(BadIndicesTest, MakeReductionsNan) {
  for (const DType dtype : dtypes_) {
    const Tensor src = Of(dtype, {2, 3}, {1, 2, 3, 4, 5, 6});
    const auto all = [&](double value) { return Of(dtype, {2, 4}, std::vector<double>(8, value)); };
    Expect(kScatterReduce, {all(0), block_, src}, {.dim = 1, .reduce = ReduceOp::kMax}, {2, 4},
           {NAN, 0, 0, NAN, 0, 5, 6, 0}, {1, 0, 0, 0, 0, 5, 6, 0});
    Expect(kScatterReduce, {all(9), block_, src}, {.dim = 1, .reduce = ReduceOp::kMin}, {2, 4},
           {NAN, 9, 9, NAN, 9, 4, 6, 9}, {1, 9, 9, 9, 9, 4, 6, 9});
    Expect(kScatterReduce, {all(1), block_, src}, {.dim = 1, .reduce = ReduceOp::kProduct}, {2, 4},
           {NAN, 1, 1, NAN, 1, 20, 6, 1}, {1, 1, 1, 1, 1, 20, 6, 1});
  }
}

// Where nothing else is written. Of integers nothing is.
TEST_F(BadIndicesTest, MakeZeroedPlacesNan) {
  const Tensor index = Tensor::FromValues<int64_t>({3}, {1, 4, -1});
  for (const DType dtype : dtypes_) {
    const Tensor x = Of(dtype, {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
    const std::vector<double> floating = {NAN, 0, 3, NAN, NAN, 0, 7, NAN};
    const std::vector<double> integers = {1, 0, 3, 4, 5, 0, 7, 8};
    EXPECT_EQ(Difference(Run(kIndexZero, {x, index}, {.dim = 1})[0],
                         Of(dtype, {2, 4}, IsFloating(dtype) ? floating : integers), {}),
              "")
        << DTypeName(dtype);
  }
}

// Of two ranks that have half of the result each, the one that has the nearest place; an index of the other's is good.
TEST_F(BadIndicesTest, MakeTheNearestRanksPlaceNan) {
  const Tensor index = Tensor::FromValues<int64_t>({3}, {1, 4, 2});
  const Tensor src = Of(DType::kF32, {3}, {1, 2, 3});
  const auto half = [&](int64_t first) {
    const std::vector<ShardBox> boxes = {{{4}, {first}, {2}}};
    const Tensor sums = Run(kScatterSum, {index, src}, {.dim = 0, .extent = 4}, boxes)[0];
    const Tensor added = Run(kIndexAdd, {index, src}, {.dim = 0, .extent = 4}, boxes)[0];
    EXPECT_EQ(Difference(added, sums, {}), "");
    return sums;
  };
  EXPECT_EQ(Difference(half(0), Of(DType::kF32, {2}, {0, 1}), {}), "");
  EXPECT_EQ(Difference(half(2), Of(DType::kF32, {2}, {3, NAN}), {}), "");
}

// Among more places than a block puts in order by comparing them.
TEST_F(BadIndicesTest, ShowAmongManyGoodOnes) {
  std::vector<int64_t> values(1300, 3);
  values[700] = 9;
  const Tensor index = Tensor::FromValues<int64_t>({1300}, values);
  const Tensor ones = Of(DType::kF32, {1300, 1}, std::vector<double>(1300, 1));
  EXPECT_EQ(Difference(Run(kIndexAdd, {index, ones}, {.dim = 0, .extent = 4})[0],
                       Of(DType::kF32, {4, 1}, {0, 0, 0, NAN}), {}),
            "");
  const Tensor counts = Of(DType::kI32, {1300, 1}, std::vector<double>(1300, 1));
  EXPECT_EQ(Difference(Run(kIndexAdd, {index, counts}, {.dim = 0, .extent = 4})[0],
                       Of(DType::kI32, {4, 1}, {0, 0, 0, 1299}), {}),
            "");
}

}  // namespace
}  // namespace weft
