#include "runtime/data/batches.h"

#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Token i is i, so that a window tells where it starts.
std::vector<int32_t> Count(int64_t n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

std::vector<int64_t> Starts(const TokenBatch& batch) {
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < batch.count; ++i)
    starts.push_back(batch.inputs[static_cast<size_t>(i * batch.context)]);
  return starts;
}

void ExpectWindows(const TokenBatch& batch, int64_t num_tokens) {
  ASSERT_EQ(batch.inputs.size(), static_cast<size_t>(batch.count * batch.context));
  ASSERT_EQ(batch.targets.size(), batch.inputs.size());
  const std::vector<int64_t> starts = Starts(batch);
  for (int64_t i = 0; i < batch.count; ++i) {
    for (int64_t t = 0; t < batch.context; ++t) {
      const auto at = static_cast<size_t>(i * batch.context + t);
      ASSERT_EQ(batch.inputs[at], starts[static_cast<size_t>(i)] + t);
      ASSERT_EQ(batch.targets[at], batch.inputs[at] + 1);
    }
    ASSERT_LE(starts[static_cast<size_t>(i)] + batch.context, num_tokens - 1);
  }
}

TEST(TrainBatchesTest, TargetsAreInputsShiftedByOne) {
  for (int64_t context : {1, 2, 7, 64}) {
    const std::vector<int32_t> tokens = Count(200);
    const TokenBatch batch =
        TrainBatches(tokens, context, /*seed=*/1).Get(/*step=*/3, /*first=*/0, /*count=*/33);
    EXPECT_EQ(batch.count, 33);
    EXPECT_EQ(batch.context, context);
    ExpectWindows(batch, 200);
  }
}

TEST(TrainBatchesTest, HowTheBatchIsCutDoesNotMatter) {
  const std::vector<int32_t> tokens = Count(1000);
  const TrainBatches batches(tokens, 8, 1337);
  const TokenBatch whole = batches.Get(5, 0, 12);
  for (const std::vector<int64_t>& cut : std::vector<std::vector<int64_t>>{{6, 6}, {5, 5, 2, 0}, {0, 12}}) {
    std::vector<int32_t> inputs, targets;
    int64_t first = 0;
    for (int64_t count : cut) {
      const TokenBatch part = batches.Get(5, first, count);
      inputs.insert(inputs.end(), part.inputs.begin(), part.inputs.end());
      targets.insert(targets.end(), part.targets.begin(), part.targets.end());
      first += count;
    }
    EXPECT_EQ(inputs, whole.inputs);
    EXPECT_EQ(targets, whole.targets);
  }
  EXPECT_EQ(TrainBatches(tokens, 8, 1337).Get(5, 0, 12), whole) << "another object, the same samples";
}

TEST(TrainBatchesTest, SeedAndStepChangeTheSamples) {
  const std::vector<int32_t> tokens = Count(1000000);
  const TokenBatch batch = TrainBatches(tokens, 8, 1).Get(5, 0, 16);
  EXPECT_NE(TrainBatches(tokens, 8, 2).Get(5, 0, 16), batch);
  EXPECT_NE(TrainBatches(tokens, 8, 1).Get(6, 0, 16), batch);
  EXPECT_NE(TrainBatches(tokens, 8, 1).Get(5, 16, 16), batch);
  const std::vector<int64_t> starts = Starts(batch);
  EXPECT_GT(std::set<int64_t>(starts.begin(), starts.end()).size(), 14u) << "samples of a batch differ";
}

TEST(TrainBatchesTest, EveryWindowIsEquallyLikely) {
  // 10 windows, 20,000 draws: chi-squared with 9 degrees of freedom is above 27.9 once in 1000.
  const std::vector<int32_t> tokens = Count(14);
  const TrainBatches batches(tokens, 4, 1337);
  std::vector<int64_t> seen(10, 0);
  for (int64_t step = 0; step < 20; ++step) {
    for (int64_t start : Starts(batches.Get(step, 0, 1000))) ++seen.at(static_cast<size_t>(start));
  }
  double chi_squared = 0;
  for (int64_t n : seen) chi_squared += std::pow(static_cast<double>(n) - 2000, 2) / 2000;
  EXPECT_LT(chi_squared, 27.9);
}

TEST(TrainBatchesTest, AWindowIsAllThatATextOfContextPlusOneHas) {
  const std::vector<int32_t> tokens = Count(5);
  const TokenBatch batch = TrainBatches(tokens, 4, 9).Get((int64_t{1} << 32) - 1, 0, 3);
  EXPECT_THAT(batch.inputs, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4));
}

TEST(TrainBatchesTest, RefusesBadArguments) {
  const std::vector<int32_t> tokens = Count(5);
  EXPECT_THAT(InvalidArgumentMessage([&] { TrainBatches(tokens, 5, 0); }),
              HasSubstr("5 tokens are too few: a sample of context 5 takes 6"));
  EXPECT_THAT(InvalidArgumentMessage([&] { TrainBatches({}, 1, 0); }), HasSubstr("0 tokens are too few"));
  EXPECT_THAT(InvalidArgumentMessage([&] { TrainBatches(tokens, 0, 0); }),
              HasSubstr("context: expected at least 1, got 0"));
  const TrainBatches batches(tokens, 4, 0);
  EXPECT_THAT(InvalidArgumentMessage([&] { batches.Get(-1, 0, 1); }), HasSubstr("step"));
  EXPECT_THAT(InvalidArgumentMessage([&] { batches.Get(int64_t{1} << 32, 0, 1); }), HasSubstr("step"));
  EXPECT_THAT(InvalidArgumentMessage([&] { batches.Get(0, -1, 1); }), HasSubstr("first -1"));
  EXPECT_THAT(InvalidArgumentMessage([&] { batches.Get(0, 0, -1); }), HasSubstr("count -1"));
}

TEST(EvalBatchesTest, AllWindowsOnceIfAsManyAreWanted) {
  const std::vector<int32_t> tokens = Count(14);  // windows [0, 4], [4, 8], [8, 12]; token 13 is left over
  for (int64_t wanted : {3, 4, 1000}) {
    const EvalBatches batches(tokens, 4, wanted);
    ASSERT_EQ(batches.num_samples(), 3);
    const TokenBatch batch = batches.Get(0, 3);
    ExpectWindows(batch, 14);
    EXPECT_THAT(Starts(batch), ElementsAre(0, 4, 8));
  }
}

TEST(EvalBatchesTest, TheLastTargetMayBeTheLastToken) {
  EXPECT_EQ(EvalBatches(Count(12), 4, 10).num_samples(), 2);
  const std::vector<int32_t> tokens = Count(13);
  const EvalBatches batches(tokens, 4, 10);
  ASSERT_EQ(batches.num_samples(), 3);
  EXPECT_EQ(batches.Get(2, 1).targets.back(), 12);
}

TEST(EvalBatchesTest, FewerWindowsAreSpreadOverTheText) {
  const std::vector<int32_t> tokens = Count(41);  // 10 windows
  EXPECT_THAT(Starts(EvalBatches(tokens, 4, 5).Get(0, 5)), ElementsAre(0, 8, 16, 24, 32));
  EXPECT_THAT(Starts(EvalBatches(tokens, 4, 3).Get(0, 3)), ElementsAre(0, 12, 24));
  EXPECT_THAT(Starts(EvalBatches(tokens, 4, 3).Get(1, 2)), ElementsAre(12, 24));
  EXPECT_THAT(Starts(EvalBatches(tokens, 4, 1).Get(0, 1)), ElementsAre(0));
  EXPECT_EQ(EvalBatches(tokens, 4, 3).Get(3, 0).count, 0) << "an empty shard";
}

TEST(EvalBatchesTest, RefusesBadArguments) {
  const std::vector<int32_t> tokens = Count(14);
  EXPECT_THAT(InvalidArgumentMessage([&] { EvalBatches(tokens, 14, 1); }),
              HasSubstr("14 tokens are too few"));
  EXPECT_THAT(InvalidArgumentMessage([&] { EvalBatches(tokens, 4, 0); }),
              HasSubstr("expected at least 1, got 0"));
  const EvalBatches batches(tokens, 4, 3);
  EXPECT_THAT(InvalidArgumentMessage([&] { batches.Get(2, 2); }),
              HasSubstr("samples [2, 4) are not within [0, 3)"));
  EXPECT_THAT(InvalidArgumentMessage([&] { batches.Get(-1, 1); }), HasSubstr("samples [-1, 0)"));
  EXPECT_THAT(InvalidArgumentMessage([&] { batches.Get(0, -1); }), HasSubstr("samples [0, -1)"));
}

}  // namespace
}  // namespace weft
