#include "ops/normalization/cross_entropy.h"

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

Tensor Make(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

Tensor Random(DType dtype, const Shape& shape, int seed, double low = -4, double high = 4) {
  std::mt19937_64 random(seed);
  return RandomTensor({{dtype, shape}, low, high}, random);
}

// The definition: minus the sum of target probabilities times log-probabilities, and its gradient.
struct Naive {
  double loss = 0;
  double count = 0;
  std::vector<double> lse, dlogits;

  Naive(const Tensor& logits, const Tensor& targets, double dloss, const CrossEntropyAttributes& attributes) {
    const std::vector<double> x = logits.ToVector<double>();
    const int64_t v = logits.shape()[logits.ndim() - 1];
    const double e = attributes.label_smoothing;
    dlogits.assign(x.size(), 0);
    int64_t row = 0;
    for (int64_t target : targets.ToVector<int64_t>()) {
      const double* begin = x.data() + row * v;
      double* gradient = dlogits.data() + row * v;
      ++row;
      lse.push_back(0);
      if (target == attributes.ignore_index) continue;
      const double max = *std::max_element(begin, begin + v);
      double sum = 0;
      for (int64_t i = 0; i < v; ++i) sum += std::exp(begin[i] - max);
      lse.back() = max + std::log(sum);
      for (int64_t i = 0; i < v; ++i) {
        const double probability = e / v + (i == target ? 1 - e : 0);
        const double log_softmax = begin[i] - max - std::log(sum);
        loss -= probability * log_softmax;
        gradient[i] = dloss * (std::exp(log_softmax) - probability);
      }
      count += 1;
    }
  }
};

// Random classes, every third position ignored.
Tensor Targets(DType dtype, const Shape& shape, int64_t v, int64_t ignored, int seed) {
  std::vector<double> values = Random(DType::kI64, shape, seed, 0, static_cast<double>(v)).ToVector<double>();
  for (size_t i = 2; i < values.size(); i += 3) values[i] = static_cast<double>(ignored);
  return Make(dtype, shape, values);
}

class CrossEntropyTest : public ::testing::TestWithParam<DType> {};

TEST_P(CrossEntropyTest, MatchesANaiveLoop) {
  const DType dtype = GetParam();
  const DType statistic = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const double tolerance = dtype == DType::kF64 ? 1e-12 : dtype == DType::kF32 ? 2e-6 : 1e-5;
  const double gradient_tolerance = dtype == DType::kF64 ? 1e-13 : dtype == DType::kF32 ? 1e-6 : 1e-2;
  for (const Shape& shape :
       {Shape{7}, Shape{0, 5}, Shape{4, 1}, Shape{2, 3, 17}, Shape{5, 64}, Shape{3, 9001}}) {
    Shape rows = shape;
    rows.Remove(shape.ndim() - 1);
    const int64_t v = shape[shape.ndim() - 1];
    const Tensor logits = Random(dtype, shape, 1);
    for (const CrossEntropyAttributes& attributes :
         {CrossEntropyAttributes{}, CrossEntropyAttributes{.ignore_index = -1, .label_smoothing = 0.1},
          CrossEntropyAttributes{.label_smoothing = 1}}) {
      const Tensor targets =
          Targets(shape.ndim() == 2 ? DType::kI32 : DType::kI64, rows, v, attributes.ignore_index, 2);
      const Naive naive(logits, targets, -1.5, attributes);
      const std::vector<Tensor> outputs = RunAll(kCrossEntropy, {logits, targets}, attributes);
      EXPECT_TRUE(AllClose(outputs[0], Make(statistic, {}, {naive.loss}), tolerance)) << shape.ToString();
      EXPECT_EQ(outputs[1].ToVector<double>()[0], naive.count);
      EXPECT_EQ(outputs[1].dtype(), statistic);
      EXPECT_TRUE(AllClose(outputs[2], Make(statistic, rows, naive.lse), tolerance)) << shape.ToString();
      const Tensor gradient =
          Backward(kCrossEntropy, {logits, targets}, {Make(statistic, {}, {-1.5}), {}, {}}, attributes)[0];
      EXPECT_TRUE(AllClose(gradient, Make(dtype, shape, naive.dlogits), gradient_tolerance))
          << shape.ToString();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CrossEntropyTest, ::testing::Values(DType::kF32, DType::kF64, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(CrossEntropyTest, NothingCounts) {
  const Tensor logits = Random(DType::kF32, {3, 4}, 1);
  const Tensor ignored = Make(DType::kI64, {3}, {-100, -100, -100});
  const std::vector<Tensor> outputs = RunAll(kCrossEntropy, {logits, ignored});
  EXPECT_EQ(outputs[0].ToVector<double>()[0], 0);
  EXPECT_EQ(outputs[1].ToVector<double>()[0], 0);
  EXPECT_TRUE(SameBits(Backward(kCrossEntropy, {logits, ignored}, {Make(DType::kF32, {}, {1}), {}, {}})[0],
                       Make(DType::kF32, {3, 4}, std::vector<double>(12, 0))));
  // No class and no position that counts: nothing to look up.
  EXPECT_EQ(RunAll(kCrossEntropy, {Tensor::FromValues<float>({3, 0}, {}), ignored})[0].ToVector<double>()[0],
            0);
}

TEST(CrossEntropyTest, AnIgnoredClassIsIgnored) {
  // ignore_index may be a class: a padding token.
  const Tensor logits = Random(DType::kF64, {4, 3}, 1), targets = Make(DType::kI64, {4}, {0, 1, 0, 2});
  const CrossEntropyAttributes attributes = {.ignore_index = 0};
  const Naive naive(logits, targets, 1, attributes);
  const std::vector<Tensor> outputs = RunAll(kCrossEntropy, {logits, targets}, attributes);
  EXPECT_NEAR(outputs[0].ToVector<double>()[0], naive.loss, 1e-13);
  EXPECT_EQ(outputs[1].ToVector<double>()[0], 2);
}

TEST(CrossEntropyTest, LargeLogitsKeepASmallLoss) {
  const Tensor logits = Make(DType::kF32, {2, 3}, {1e4, 1e4 - 2, -1e4, -1e4, -1e4 - 1, -1e4 - 2});
  const Tensor targets = Make(DType::kI64, {2}, {0, 1});
  const Naive naive(logits, targets, 1, {});
  const std::vector<Tensor> outputs = RunAll(kCrossEntropy, {logits, targets});
  // Through an f32 lse, whose spacing is 0.001 at 1e4, this could not hold.
  EXPECT_NEAR(outputs[0].ToVector<double>()[0], naive.loss, 1e-6);
  EXPECT_TRUE(AllClose(Backward(kCrossEntropy, {logits, targets}, {Make(DType::kF32, {}, {1}), {}, {}})[0],
                       Make(DType::kF32, {2, 3}, naive.dlogits), 1e-3));
}

TEST(CrossEntropyTest, AHalfsGradientKeepsTheDigitsOfACertainTarget) {
  // The probability of class 1, 0.99989, is 1 as a half: subtracted after rounding, nothing would be left.
  const Tensor logits = Make(DType::kBF16, {1, 3}, {0, 10, 1});
  const Tensor targets = Make(DType::kI64, {1}, {1});
  const Naive naive(logits, targets, 1, {});
  const std::vector<double> gradient =
      Backward(kCrossEntropy, {logits, targets}, {Make(DType::kF32, {}, {1}), {}, {}})[0].ToVector<double>();
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(gradient[i], naive.dlogits[i], 1e-2 * std::abs(naive.dlogits[i]));
}

TEST(CrossEntropyTest, ImpossibleTargetsAndNans) {
  const Tensor targets = Make(DType::kI64, {1}, {1});
  const auto loss = [&](const std::vector<double>& logits) {
    return RunOp(kCrossEntropy, {Make(DType::kF32, {1, 3}, logits), targets}).ToVector<double>()[0];
  };
  EXPECT_EQ(loss({0, -kInf, 0}), kInf);
  EXPECT_NEAR(loss({-kInf, 0, 0}), std::log(2), 1e-6);
  EXPECT_TRUE(std::isnan(loss({std::nan(""), 0, 0})));
  EXPECT_TRUE(std::isnan(loss({-kInf, -kInf, -kInf})));
}

TEST(CrossEntropyTest, GradientsMatchDifferences) {
  for (double smoothing : {0.0, 0.2}) {
    const Sample<CrossEntropyAttributes> sample = {
        .operands = {{{DType::kF64, {2, 3, 5}}, -2, 2}, {{DType::kI64, {2, 3}}, 0, 5}},
        .attributes = {.ignore_index = 2, .label_smoothing = smoothing}};
    EXPECT_TRUE(CheckGradients(kCrossEntropy, sample, {.statistics = {1, 2}}));
  }
}

TEST(CrossEntropyTest, ThreadsDoNotChangeBits) {
  const Tensor logits = Random(DType::kF32, {33, 1003}, 1),
               targets = Targets(DType::kI64, {33}, 1003, -100, 2);
  const std::vector<Tensor> one = RunAll(kCrossEntropy, {logits, targets});
  const Tensor dloss = Make(DType::kF32, {}, {0.25});
  const Tensor gradient = RunOp(kCrossEntropyGrad, {logits, targets, one[2], dloss});
  for (int threads : {2, 5}) {
    const std::vector<Tensor> again = RunAll(kCrossEntropy, {logits, targets}, {}, {}, threads);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(again[i], one[i]));
    EXPECT_TRUE(
        SameBits(RunOp(kCrossEntropyGrad, {logits, targets, one[2], dloss}, {}, {}, threads), gradient));
  }
}

// What the decomposition does on three ranks that hold pieces of the vocabulary, one of them empty; logits
// are not gathered.
TEST(CrossEntropyTest, SplitVocabularyByHand) {
  const Shape shape = {2, 3, 7};
  const Tensor logits = Random(DType::kF64, shape, 1, -40, 40);
  const std::vector<Range> ranges = {{0, 4}, {4, 3}, {7, 0}};
  const ShardBox rows = WholeBox({2, 3});
  for (double smoothing : {0.0, 0.1}) {
    const CrossEntropyAttributes attributes = {.label_smoothing = smoothing};
    const Tensor targets = Targets(DType::kI64, {2, 3}, 7, -100, 2);
    Tensor max = RunSharded(kRowMax, {SplitPiece(logits, 2, ranges[0])}, {rows})[0];
    std::vector<Tensor> statistics;
    for (Range range : {ranges[1], ranges[2]}) {
      AccumulateTensor(RunSharded(kRowMax, {SplitPiece(logits, 2, range)}, {rows})[0], max, ReduceOp::kMax);
    }
    for (Range range : ranges) {
      const std::vector<Tensor> piece = RunSharded(
          kCrossEntropyStatistics, {SplitPiece(logits, 2, range), WholePiece(targets), WholePiece(max)},
          {rows, rows}, attributes);
      if (statistics.empty()) {
        statistics = piece;
        continue;
      }
      for (int i = 0; i < 2; ++i) AccumulateTensor(piece[i], statistics[i], ReduceOp::kSum);
    }
    const std::vector<Tensor> split =
        RunAll(kCrossEntropyFinish, {targets, max, statistics[0], statistics[1]}, attributes);
    const std::vector<Tensor> fused = RunAll(kCrossEntropy, {logits, targets}, attributes);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(AllClose(split[i], fused[i], 1e-13)) << i;

    const Tensor dloss = Make(DType::kF64, {}, {0.7});
    const Tensor gradient = RunOp(kCrossEntropyGrad, {logits, targets, fused[2], dloss}, attributes);
    for (Range range : ranges) {
      EXPECT_TRUE(SameBits(RunSharded(kCrossEntropyGrad,
                                      {SplitPiece(logits, 2, range), WholePiece(targets),
                                       WholePiece(fused[2]), WholePiece(dloss)},
                                      {SplitBox(shape, 2, range)}, attributes)[0],
                           SplitPiece(gradient, 2, range).tensor));
    }
  }
}

TEST(CrossEntropyTest, MisuseIsNamed) {
  const auto message = [](auto function) -> std::string {
    try {
      function();
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  };
  const Tensor logits = Random(DType::kF32, {2, 3, 5}, 1);
  const Tensor targets = Make(DType::kI64, {2, 3}, {0, 4, -100, 2, 5, -1});
  EXPECT_EQ(message([&] {
              RunOp(kCrossEntropy, {logits, targets});
            }),
            "cross_entropy: target 5 at [1, 1] is outside [0, 5) and is not ignore_index -100");
  // On a piece: the global position, and the global vocabulary.
  EXPECT_EQ(message([&] {
              const Piece rows = SplitPiece(targets, 1, {2, 1});
              RunSharded(kCrossEntropyStatistics,
                         {{CloneTensor(logits.Slice(1, 2, 1).Slice(2, 0, 2), MakeCpuAllocator()),
                           {{2, 3, 5}, {0, 2, 0}, {2, 1, 2}}},
                          rows,
                          SplitPiece(Random(DType::kF32, {2, 3}, 1), 1, {2, 1})},
                         {SplitBox({2, 3}, 1, {2, 1}), SplitBox({2, 3}, 1, {2, 1})});
            }),
            "cross_entropy: target -1 at [1, 2] is outside [0, 5) and is not ignore_index -100");
  EXPECT_EQ(message([&] {
              RunOp(kCrossEntropy, {logits, Make(DType::kI64, {3}, {0, 1, 2})});
            }),
            "cross_entropy: targets must be i32 or i64 of shape [2, 3], one a row of logits, got i64[3]");
  EXPECT_EQ(message([&] {
              RunOp(kCrossEntropy, {logits, Random(DType::kF32, {2, 3}, 1)});
            }),
            "cross_entropy: targets must be i32 or i64 of shape [2, 3], one a row of logits, got f32[2, 3]");
  EXPECT_EQ(message([&] {
              RunOp(kCrossEntropy, {logits, targets}, {.label_smoothing = 1.5});
            }),
            "cross_entropy: label_smoothing must lie in [0, 1], got 1.5");
}

}  // namespace
}  // namespace weft
