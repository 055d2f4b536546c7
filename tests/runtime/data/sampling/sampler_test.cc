#include "runtime/data/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/data/batches.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Epoch(const Sampler& sampler, int64_t epoch) {
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < sampler.epoch_size(); ++i) samples.push_back(sampler.At(epoch, i));
  return samples;
}

std::vector<int64_t> Sorted(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<int64_t> UpTo(int64_t n) {
  std::vector<int64_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(SamplerTest, SequentialIsTheSameInEveryEpoch) {
  const SequentialSampler sampler(4);
  EXPECT_THAT(Epoch(sampler, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(Epoch(sampler, 7), Epoch(sampler, 0));
  EXPECT_EQ(sampler.ToString(), "sequential(4)");
}

TEST(SamplerTest, ShuffledHasEachSampleOncePerEpochInAnotherOrder) {
  for (const int64_t n : {1, 2, 13, 64, 1000}) {
    const ShuffledSampler sampler(n, 1337);
    for (int64_t epoch = 0; epoch < 4; ++epoch) EXPECT_EQ(Sorted(Epoch(sampler, epoch)), UpTo(n));
    EXPECT_EQ(Epoch(ShuffledSampler(n, 1337), 2), Epoch(sampler, 2)) << "another object, the same samples";
  }
  const ShuffledSampler sampler(1000, 1337);
  EXPECT_NE(Epoch(sampler, 0), UpTo(1000));
  EXPECT_NE(Epoch(sampler, 0), Epoch(sampler, 1));
  EXPECT_NE(Epoch(sampler, 0), Epoch(ShuffledSampler(1000, 1338), 0));
  EXPECT_EQ(sampler.ToString(), "shuffled(1000, seed 1337)");
}

TEST(SamplerTest, ShuffledEpochsAreIndependent) {
  // How often a sample stands at its place of the epoch before: once per epoch on average, with variance 1.
  const ShuffledSampler sampler(500, 5);
  int64_t same = 0;
  std::vector<int64_t> before = Epoch(sampler, 0);
  for (int64_t epoch = 1; epoch <= 200; ++epoch) {
    const std::vector<int64_t> now = Epoch(sampler, epoch);
    for (size_t i = 0; i < now.size(); ++i) same += now[i] == before[i] ? 1 : 0;
    before = now;
  }
  EXPECT_NEAR(static_cast<double>(same), 200, 4 * std::sqrt(200.0));
}

TEST(SamplerTest, APositionGoesThroughEpochs) {
  const ShuffledSampler sampler(7, 3);
  for (int64_t position = 0; position < 30; ++position) {
    EXPECT_EQ(sampler.AtPosition(position), sampler.At(position / 7, position % 7));
  }
}

TEST(SamplerTest, WithReplacementDrawsWhatTrainBatchesDoes) {
  std::vector<int32_t> tokens(500);
  std::iota(tokens.begin(), tokens.end(), 0);
  const TrainBatches batches(tokens, /*context=*/8, /*seed=*/1337);
  const ReplacementSampler sampler(/*num_samples=*/492, /*epoch_size=*/12, /*seed=*/1337);
  for (int64_t step = 0; step < 5; ++step) {
    const TokenBatch batch = batches.Get(step, 0, 12);
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(sampler.At(step, i), batch.inputs[static_cast<size_t>(8 * i)]);
      EXPECT_EQ(sampler.AtPosition(12 * step + i), sampler.At(step, i));
    }
  }
  EXPECT_EQ(sampler.ToString(), "with_replacement(492, seed 1337, epochs of 12)");
}

TEST(SamplerTest, RefusesBadArguments) {
  EXPECT_EQ(InvalidArgumentMessage([] { SequentialSampler(0); }),
            "sampler: expected at least 1 sample, got 0");
  EXPECT_EQ(InvalidArgumentMessage([] { ShuffledSampler(-1, 0); }),
            "sampler: expected at least 1 sample, got -1");
  EXPECT_EQ(InvalidArgumentMessage([] { ReplacementSampler(3, 0, 0); }),
            "sampler: epoch: expected at least 1 sample, got 0");
  const ShuffledSampler sampler(3, 0);
  EXPECT_EQ(InvalidArgumentMessage([&] { sampler.At(0, 3); }), "sampler: sample 3 of an epoch of 3");
  EXPECT_EQ(InvalidArgumentMessage([&] { sampler.At(int64_t{1} << 32, 0); }),
            "sampler: epoch: expected 0 to 2^32 - 1, got 4294967296");
  EXPECT_EQ(InvalidArgumentMessage([&] { sampler.AtPosition(-1); }),
            "sampler: position: expected at least 0, got -1");
}

}  // namespace
}  // namespace weft
