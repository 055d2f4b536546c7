#include "ops/creation/random.h"

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

constexpr RandomKey kKey = {.seed = 7, .stream = 1234567, .step = 3};

struct Moments {
  double mean = 0;
  double variance = 0;
};

Moments MomentsOf(const Tensor& x) {
  Moments moments;
  const std::vector<double> values = x.ToVector<double>();
  const double n = static_cast<double>(values.size());
  for (double value : values) moments.mean += value / n;
  for (double value : values) moments.variance += (value - moments.mean) * (value - moments.mean) / n;
  return moments;
}

TEST(RandomTest, ElementsAreThoseOfTheStream) {
  const Shape shape = {3, 7};
  const std::vector<float> uniform =
      RunOp(kRandomUniform, {}, {.shape = shape}, {.key = kKey, .low = -2, .high = 2}).ToVector<float>();
  const std::vector<float> normal =
      RunOp(kRandomNormal, {}, {.shape = shape}, {.key = kKey, .mean = 1, .stddev = 0.5}).ToVector<float>();
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    EXPECT_EQ(uniform[i], -2 + 4 * UniformAt(kKey, i)) << i;
    EXPECT_EQ(normal[i], 1 + 0.5f * NormalAt(kKey, i)) << i;
  }
}

TEST(RandomTest, MomentsAreThoseOfTheDistribution) {
  const int64_t n = 200000;  // standard error of the mean: 0.0007 and 0.0022
  const Moments uniform = MomentsOf(RunOp(kRandomUniform, {}, {.shape = {n}}, {.key = kKey}));
  EXPECT_NEAR(uniform.mean, 0.5, 0.003);
  EXPECT_NEAR(uniform.variance, 1.0 / 12, 0.001);
  const Moments normal =
      MomentsOf(RunOp(kRandomNormal, {}, {.shape = {n}}, {.key = kKey, .mean = 3, .stddev = 2}));
  EXPECT_NEAR(normal.mean, 3, 0.018);
  EXPECT_NEAR(normal.variance, 4, 0.05);
}

TEST(RandomTest, PiecesHaveTheBitsOfTheWhole) {
  for (const Shape& shape : {Shape{5}, Shape{5, 7}, Shape{3, 5, 7}, Shape{2, 3, 4, 5}, Shape{300, 211}}) {
    const CreationAttributes attributes = {.shape = shape};
    const Tensor uniform = RunOp(kRandomUniform, {}, attributes, {.key = kKey}, /*num_threads=*/2);
    const Tensor normal = RunOp(kRandomNormal, {}, attributes, {.key = kKey}, /*num_threads=*/2);
    const DropoutScalars dropout = {.key = kKey, .rate = 0.3, .batch_offset = 11};
    const Tensor dropped = RunOp(kDropout, {normal}, {}, dropout, /*num_threads=*/2);
    for (int dim = 0; dim < shape.ndim(); ++dim) {
      for (const Range range :
           {Range{0, shape[dim]}, Range{1, shape[dim] - 1}, Range{1, 1}, Range{shape[dim], 0}}) {
        const ShardBox box = SplitBox(shape, dim, range);
        const auto piece_of = [&](const Tensor& whole) { return SplitPiece(whole, dim, range).tensor; };
        EXPECT_TRUE(
            SameBits(RunSharded(kRandomUniform, {}, {box}, attributes, {.key = kKey})[0], piece_of(uniform)));
        EXPECT_TRUE(
            SameBits(RunSharded(kRandomNormal, {}, {box}, attributes, {.key = kKey})[0], piece_of(normal)));
        EXPECT_TRUE(SameBits(RunSharded(kDropout, {SplitPiece(normal, dim, range)}, {box}, {}, dropout)[0],
                             piece_of(dropped)))
            << shape << " dim " << dim;
      }
    }
  }
}

TEST(RandomTest, OtherDTypesAreTheF32ValuesRounded) {
  const Tensor f32 = RunOp(kRandomNormal, {}, {.shape = {1000}}, {.key = kKey});
  for (DType dtype : {DType::kF64, DType::kBF16, DType::kF16}) {
    const Tensor y = RunOp(kRandomNormal, {}, {.dtype = dtype, .shape = {1000}}, {.key = kKey});
    EXPECT_TRUE(SameBits(y, CastTensor(f32, dtype, MakeCpuAllocator())));
  }
}

TEST(RandomTest, KeysGiveOtherValues) {
  const auto values = [](const RandomKey& key) {
    return RunOp(kRandomUniform, {}, {.shape = {8}}, {.key = key}).ToVector<float>();
  };
  EXPECT_EQ(values(kKey), values(kKey));
  EXPECT_NE(values(kKey), values({.seed = 8, .stream = kKey.stream, .step = kKey.step}));
  EXPECT_NE(values(kKey), values({.seed = kKey.seed, .stream = 1, .step = kKey.step}));
  EXPECT_NE(values(kKey), values({.seed = kKey.seed, .stream = kKey.stream, .step = 4}));
}

TEST(RandomTest, FillAndArange) {
  EXPECT_EQ(RunOp(kFill, {}, {.dtype = DType::kI64, .shape = {2, 2}}, {.value = 7}).ToVector<int64_t>(),
            (std::vector<int64_t>{7, 7, 7, 7}));
  EXPECT_EQ(RunOp(kFill, {}, {.dtype = DType::kBool, .shape = {2}}, {.value = 1}).ToVector<bool>(),
            (std::vector<bool>{true, true}));
  EXPECT_EQ(RunOp(kArange, {}, {.shape = {4}}, {.start = 2, .step = -0.5}).ToVector<float>(),
            (std::vector<float>{2, 1.5, 1, 0.5}));
  EXPECT_EQ(RunSharded(kArange, {}, {SplitBox({5}, 0, {3, 2})}, {.dtype = DType::kI32, .shape = {5}})[0]
                .ToVector<int32_t>(),
            (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(RunOp(kArange, {}, {.shape = {0}}).num_elements(), 0);
}

TEST(RandomTest, DropoutKeepsAndScales) {
  const int64_t n = 100000;
  const Tensor ones = RunOp(kFill, {}, {.shape = {n}}, {.value = 1});
  const std::vector<float> y = RunOp(kDropout, {ones}, {}, {.key = kKey, .rate = 0.25}).ToVector<float>();
  int64_t kept = 0;
  for (int64_t i = 0; i < n; ++i) {
    const bool keep = UniformAt(kKey, i) >= 0.25f;
    ASSERT_EQ(y[i], keep ? static_cast<float>(1 / 0.75) : 0) << i;
    kept += keep;
  }
  EXPECT_NEAR(static_cast<double>(kept) / n, 0.75, 0.006);  // four standard errors
}

TEST(RandomTest, DropoutOfRateZeroIsTheIdentity) {
  const Tensor x = RunOp(kRandomNormal, {}, {.shape = {3, 41}}, {.key = kKey});
  EXPECT_TRUE(SameBits(RunOp(kDropout, {x}, {}, {.key = kKey, .rate = 0}), x));
}

TEST(RandomTest, DropoutHidesWhatItDrops) {
  const Tensor x = Tensor::FromValues<float>({64}, std::vector<float>(64, INFINITY));
  for (float value : RunOp(kDropout, {x}, {}, {.key = kKey, .rate = 0.5}).ToVector<float>()) {
    EXPECT_TRUE(value == 0 || value == INFINITY);
  }
}

// A microbatch that starts at row 2 of the batch sees rows 2.. of the batch's mask.
TEST(RandomTest, BatchOffsetContinuesTheMask) {
  const Tensor x = RunOp(kRandomNormal, {}, {.shape = {6, 5}}, {.key = kKey});
  const Tensor whole = RunOp(kDropout, {x}, {}, {.key = kKey, .rate = 0.5});
  const Tensor rest = CloneTensor(x.Slice(0, 2, 4), MakeCpuAllocator());
  EXPECT_TRUE(SameBits(RunOp(kDropout, {rest}, {}, {.key = kKey, .rate = 0.5, .batch_offset = 2}),
                       CloneTensor(whole.Slice(0, 2, 4), MakeCpuAllocator())));
}

// And what is made from nothing has the elements that the longer tensor has there.
TEST(RandomTest, BatchOffsetContinuesTheElements) {
  const auto expect_rest = [](const Tensor& whole, const Tensor& rest) {
    EXPECT_TRUE(SameBits(rest, CloneTensor(whole.Slice(0, 2, 4), MakeCpuAllocator())));
  };
  const CreationAttributes six = {.shape = {6, 5}};
  const CreationAttributes four = {.shape = {4, 5}};
  expect_rest(RunOp(kRandomUniform, {}, six, {.key = kKey}),
              RunOp(kRandomUniform, {}, four, {.key = kKey, .batch_offset = 2}));
  expect_rest(RunOp(kRandomNormal, {}, six, {.key = kKey}),
              RunOp(kRandomNormal, {}, four, {.key = kKey, .batch_offset = 2}));
  expect_rest(RunOp(kBernoulli, {}, six, {.key = kKey}),
              RunOp(kBernoulli, {}, four, {.key = kKey, .batch_offset = 2}));
  const Tensor p = RunOp(kRandomUniform, {}, six, {.key = {.seed = 1}});
  const Tensor rest = CloneTensor(p.Slice(0, 2, 4), MakeCpuAllocator());
  expect_rest(RunOp(kBernoulliOf, {p}, {}, {.key = kKey}),
              RunOp(kBernoulliOf, {rest}, {}, {.key = kKey, .batch_offset = 2}));
  // A scalar lies in no batch.
  EXPECT_TRUE(SameBits(RunOp(kRandomNormal, {}, {.shape = {}}, {.key = kKey, .batch_offset = 2}),
                       RunOp(kRandomNormal, {}, {.shape = {}}, {.key = kKey})));
}

TEST(RandomTest, DropoutOfStridedHalvesAndBackward) {
  const Tensor x =
      RunOp(kRandomNormal, {}, {.dtype = DType::kBF16, .shape = {40, 30}}, {.key = kKey}).Transpose(0, 1);
  const DropoutScalars scalars = {.key = kKey, .rate = 0.5};
  const Tensor y = RunOp(kDropout, {x}, {}, scalars);
  EXPECT_TRUE(SameBits(y, RunOp(kDropout, {CloneTensor(x, MakeCpuAllocator())}, {}, scalars)));
  const Tensor ones = RunOp(kFill, {}, {.dtype = DType::kBF16, .shape = {30, 40}}, {.value = 1});
  const std::vector<double> dx = Backward(kDropout, {x}, {ones}, {}, scalars)[0].ToVector<double>();
  const std::vector<double> y_values = y.ToVector<double>();
  for (size_t i = 0; i < dx.size(); ++i) EXPECT_EQ(dx[i], y_values[i] == 0 ? 0 : 2) << i;
}

TEST(RandomTest, BernoulliIsTheUniformBelowTheProbability) {
  const int64_t n = 4001;
  for (double probability : {0.0, 0.3, 1.0}) {
    for (DType dtype : {DType::kF32, DType::kBool, DType::kI64, DType::kBF16}) {
      const Tensor y =
          RunOp(kBernoulli, {}, {.dtype = dtype, .shape = {n}}, {.key = kKey, .probability = probability});
      const std::vector<double> values = y.ToVector<double>();
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(values[i], UniformAt(kKey, i) < probability ? 1 : 0) << i;
    }
  }
}

// Every element has a probability of its own, and the bits of its place in the whole.
TEST(RandomTest, BernoulliOfTensors) {
  const Tensor p = RunOp(kRandomUniform, {}, {.shape = {7, 601}}, {.key = {.seed = 1}});
  const Tensor y = RunOp(kBernoulliOf, {p}, {}, {.key = kKey}, /*num_threads=*/2);
  const std::vector<double> probabilities = p.ToVector<double>();
  const std::vector<double> values = y.ToVector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], UniformAt(kKey, i) < probabilities[i] ? 1 : 0) << i;
  }
  for (int dim : {0, 1}) {
    const Range range = {2, 3};
    const Tensor piece = RunSharded(kBernoulliOf, {SplitPiece(p, dim, range)},
                                    {SplitBox(p.shape(), dim, range)}, {}, {.key = kKey})[0];
    EXPECT_TRUE(SameBits(piece, SplitPiece(y, dim, range).tensor)) << dim;
  }
  const Tensor sure = Tensor::FromValues<double>({2, 2}, {1, 0, 0, 1});
  EXPECT_EQ(RunOp(kBernoulliOf, {sure}, {}, {.key = kKey}).ToVector<double>(), sure.ToVector<double>());
}

TEST(RandomTest, MisuseIsNamed) {
  const Tensor x = RunOp(kFill, {}, {.shape = {2}});
  EXPECT_EQ(MessageOf([&] { RunOp(kDropout, {x}, {}, {.key = {}, .rate = 1}); }),
            "dropout: expected a rate in [0, 1), got 1");
  EXPECT_EQ(MessageOf([] { RunOp(kBernoulli, {}, {.shape = {2}}, {.key = {}, .probability = 1.5}); }),
            "bernoulli: expected a probability in [0, 1], got 1.5");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kBernoulliOf, {Tensor::FromValues<double>({2}, {0.5, -1})});
            }),
            "bernoulli_of: expected probabilities in [0, 1], got -1");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kBernoulliOf, {Tensor::FromValues<int32_t>({2}, {0, 1})});
            }),
            "bernoulli_of: expected floating probabilities, got i32[2]");
  EXPECT_EQ(MessageOf([] { RunOp(kRandomNormal, {}, {.dtype = DType::kI32, .shape = {2}}); }),
            "random_normal: expected a floating dtype, got i32[2]");
  EXPECT_EQ(MessageOf([] {
              RunOp(kArange, {}, {.shape = {2, 2}});
            }),
            "arange: expected one dim, got shape [2, 2]");
  EXPECT_EQ(MessageOf([] { RunOp(kFill, {}, {.shape = {-1}}); }), "fill: negative extent in f32[-1]");
}

}  // namespace
}  // namespace weft
