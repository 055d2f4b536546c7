#include "ops/normalization/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/reduce/row_reductions.h"
#include "runtime/tensor/copy.h"
#include "tests/ops/check_gradients.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor Make(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

Tensor Random(DType dtype, const Shape& shape, int seed, double low = -5, double high = 5) {
  std::mt19937_64 random(seed);
  return RandomTensor({{dtype, shape}, low, high}, random);
}

// Row by row, in double.
std::vector<double> Naive(const Tensor& x, bool log) {
  std::vector<double> values = x.ToVector<double>();
  const int64_t n = x.shape()[x.ndim() - 1];
  for (size_t row = 0; n > 0 && row < values.size() / n; ++row) {
    double* v = values.data() + row * n;
    const double max = *std::max_element(v, v + n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(v[i] - max);
    for (int64_t i = 0; i < n; ++i) v[i] = log ? v[i] - max - std::log(sum) : std::exp(v[i] - max) / sum;
  }
  return values;
}

double ToleranceOf(DType dtype) {
  return dtype == DType::kF64 ? 1e-13 : dtype == DType::kF32 ? 2e-6 : dtype == DType::kF16 ? 2e-3 : 1e-2;
}

class SoftmaxTest : public ::testing::TestWithParam<DType> {};

TEST_P(SoftmaxTest, MatchesANaiveLoop) {
  const DType dtype = GetParam();
  for (const Shape& shape : {Shape{1}, Shape{7}, Shape{0, 5}, Shape{3, 0}, Shape{3, 1}, Shape{2, 3, 16},
                             Shape{5, 17}, Shape{2, 2, 2, 33}, Shape{3, 4097}}) {
    const Tensor x = Random(dtype, shape, 1);
    EXPECT_TRUE(AllClose(RunOp(kSoftmax, {x}), Make(dtype, shape, Naive(x, false)), ToleranceOf(dtype)))
        << shape.ToString();
    EXPECT_TRUE(AllClose(RunOp(kLogSoftmax, {x}), Make(dtype, shape, Naive(x, true)), ToleranceOf(dtype)))
        << shape.ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, SoftmaxTest,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(SoftmaxTest, LargeLogitsStayExact) {
  const Tensor x = Make(DType::kF32, {2, 4}, {1e4, 1e4 - 1, -1e4, 0, -1e4, -1e4 - 2, -1e4 - 1, -1e4});
  EXPECT_TRUE(AllClose(RunOp(kSoftmax, {x}), Make(DType::kF32, {2, 4}, Naive(x, false)), 1e-6));
  // log_softmax subtracts the maximum before anything is rounded: no digits go to the size of the logits.
  const std::vector<double> expected = Naive(x, true);
  const std::vector<double> actual = RunOp(kLogSoftmax, {x}).ToVector<double>();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 1e-6 * std::max(1.0, std::abs(expected[i]))) << i;
  }
}

TEST(SoftmaxTest, InfinitiesAndNans) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const double tolerance = dtype == DType::kBF16 ? 4e-3 : dtype == DType::kF16 ? 1e-3 : 1e-6;
    const Tensor x = Make(dtype, {4, 3}, {-kInf, 0, 0, -kInf, -kInf, -kInf, 0, kNan, 0, 0, kInf, 0});
    EXPECT_TRUE(AllClose(
        RunOp(kSoftmax, {x}),
        Make(dtype, {4, 3}, {0, 0.5, 0.5, kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan}), tolerance));
    const double half = std::log(0.5);
    EXPECT_TRUE(AllClose(
        RunOp(kLogSoftmax, {x}),
        Make(dtype, {4, 3}, {-kInf, half, half, kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan}),
        tolerance));
  }
}

TEST(SoftmaxTest, ALateBlockMayHoldTheMaximumOrNothing) {
  // Longer than the blocks of the one-pass log-sum-exp, with an empty start, a rising maximum and an empty
  // end.
  std::vector<double> values(20000, -kInf);
  for (int i = 5000; i < 15000; ++i) values[i] = i < 12000 ? -3 : 50 + i % 7;
  const Tensor x = Make(DType::kF64, {20000}, values);
  EXPECT_TRUE(AllClose(RunOp(kLogSoftmax, {x}), Make(DType::kF64, {20000}, Naive(x, true)), 1e-12));
  values[9000] = kNan;
  for (double y : RunOp(kLogSoftmax, {Make(DType::kF64, {20000}, values)}).ToVector<double>())
    EXPECT_TRUE(std::isnan(y));
}

TEST(SoftmaxTest, AnyStrides) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor x = Random(dtype, {5, 6, 7}, 2);
    for (const Tensor& view : {x.Transpose(0, 2), x.Transpose(0, 1), x.Slice(2, 2, 3), x.Slice(1, 1, 4)}) {
      EXPECT_TRUE(
          SameBits(RunOp(kSoftmax, {view}), RunOp(kSoftmax, {CloneTensor(view, MakeCpuAllocator())})));
    }
  }
}

TEST(SoftmaxTest, ThreadsDoNotChangeBits) {
  const Tensor x = Random(DType::kF32, {67, 1001}, 3);
  for (const Op<>* op : {&kSoftmax, &kLogSoftmax}) {
    const Tensor one = RunOp(*op, {x});
    for (int threads : {2, 5}) EXPECT_TRUE(SameBits(RunOp(*op, {x}, {}, {}, threads), one));
  }
}

TEST(SoftmaxTest, GradientsMatchDifferences) {
  for (const Op<>* op : {&kSoftmax, &kLogSoftmax}) {
    for (const Shape& shape : {Shape{3, 7}, Shape{2, 1}, Shape{17}}) {
      EXPECT_TRUE(CheckGradients(*op, Sample<>{.operands = {{{DType::kF64, shape}, -2, 2}}}))
          << shape.ToString();
    }
  }
}

// What the decomposition does on two ranks that hold uneven pieces of the last dim.
TEST(SoftmaxTest, SplitLastDimByHand) {
  const Shape shape = {3, 11};
  const Tensor x = Random(DType::kF64, shape, 4, -30, 30);
  const ShardBox rows = WholeBox({3});
  const std::vector<Range> ranges = {{0, 6}, {6, 5}};
  Tensor max, sum;
  for (Range range : ranges) {
    const Tensor piece = RunSharded(kRowMax, {SplitPiece(x, 1, range)}, {rows})[0];
    if (!max.defined()) {
      max = piece;
    } else {
      AccumulateTensor(piece, max, ReduceOp::kMax);
    }
  }
  for (Range range : ranges) {
    const Tensor piece = RunSharded(kRowExpSum, {SplitPiece(x, 1, range), WholePiece(max)}, {rows})[0];
    if (!sum.defined()) {
      sum = piece;
    } else {
      AccumulateTensor(piece, sum, ReduceOp::kSum);
    }
  }
  const Tensor softmax = RunOp(kSoftmax, {x});
  const Tensor log_softmax = RunOp(kLogSoftmax, {x});
  for (Range range : ranges) {
    const std::vector<Piece> operands = {SplitPiece(x, 1, range), WholePiece(max), WholePiece(sum)};
    const std::vector<ShardBox> boxes = {SplitBox(shape, 1, range)};
    EXPECT_TRUE(
        AllClose(RunSharded(kSoftmaxApply, operands, boxes)[0], SplitPiece(softmax, 1, range).tensor, 1e-14));
    EXPECT_TRUE(AllClose(RunSharded(kLogSoftmaxApply, operands, boxes)[0],
                         SplitPiece(log_softmax, 1, range).tensor, 1e-14));
  }
}

TEST(SoftmaxTest, MisuseIsNamed) {
  const auto message = [](auto function) -> std::string {
    try {
      function();
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  };
  EXPECT_EQ(message([] { RunOp(kSoftmax, {Tensor::FromValues<double>({}, {1})}); }),
            "softmax: x must be floating (f32, f64, bf16, f16) with at least one dim, got f64[]");
  EXPECT_EQ(message([] {
              RunOp(kLogSoftmax, {Tensor::FromValues<int64_t>({2}, {1, 2})});
            }),
            "log_softmax: x must be floating (f32, f64, bf16, f16) with at least one dim, got i64[2]");
  EXPECT_EQ(
      message([] {
        RunOp(kSoftmaxGrad, {Tensor::FromValues<double>({2}, {1, 2}), Tensor::FromValues<double>({1}, {1})});
      }),
      "softmax_grad: dy must be f64[2], got f64[1]");
}

}  // namespace
}  // namespace weft
