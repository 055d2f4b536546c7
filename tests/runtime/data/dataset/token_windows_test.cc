#include "runtime/data/dataset/token_windows.h"

#include <numeric>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/data/batches.h"
#include "tests/message_of.h"
#include "tests/runtime/data/dataset/read_sample.h"

namespace weft {
namespace {

// Token i is i.
std::vector<int32_t> Count(int64_t n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(TokenWindowsTest, TargetsAreInputsShiftedByOne) {
  for (const int64_t context : {1, 2, 7}) {
    for (const int64_t stride : {int64_t{0}, int64_t{1}, int64_t{3}}) {
      const std::vector<int32_t> tokens = Count(50);
      const TokenWindows windows(tokens, {.context = context, .stride = stride});
      const int64_t step = stride == 0 ? context : stride;
      for (int64_t i = 0; i < windows.num_samples(); ++i) {
        const std::vector<std::vector<int32_t>> sample = ReadSample(windows, i);
        ASSERT_EQ(sample.size(), 2u);
        for (int64_t t = 0; t < context; ++t) {
          EXPECT_EQ(sample[0][static_cast<size_t>(t)], i * step + t);
          EXPECT_EQ(sample[1][static_cast<size_t>(t)], i * step + t + 1);
        }
      }
      // One more would end beyond the text.
      EXPECT_LE((windows.num_samples() - 1) * step + context, 49);
      EXPECT_GT(windows.num_samples() * step + context, 49);
    }
  }
}

TEST(TokenWindowsTest, WithoutStrideEachTokenIsAnInputOnce) {
  for (const int64_t num_tokens : {8, 9, 14, 15, 64, 65}) {
    const std::vector<int32_t> tokens = Count(num_tokens);
    const TokenWindows windows(tokens, {.context = 7});
    EXPECT_EQ(windows.num_samples(), (num_tokens - 1) / 7);
    std::multiset<int32_t> inputs;
    for (int64_t i = 0; i < windows.num_samples(); ++i) {
      const std::vector<std::vector<int32_t>> sample = ReadSample(windows, i);
      inputs.insert(sample[0].begin(), sample[0].end());
    }
    EXPECT_EQ(std::set<int32_t>(inputs.begin(), inputs.end()).size(), inputs.size());
    EXPECT_EQ(static_cast<int64_t>(inputs.size()), (num_tokens - 1) / 7 * 7);
  }
}

TEST(TokenWindowsTest, AllStartsAreThoseOfTrainBatches) {
  const std::vector<int32_t> tokens = Count(100);
  const TokenWindows windows(tokens, {.context = 9, .stride = 1});
  EXPECT_EQ(windows.num_samples(), 91);
  const TokenBatch batch = TrainBatches(tokens, 9, 1337).Get(4, 0, 5);
  const ReplacementSampler sampler(91, 5, 1337);
  for (int64_t i = 0; i < 5; ++i) {
    const std::vector<std::vector<int32_t>> sample = ReadSample(windows, sampler.At(4, i));
    EXPECT_EQ(sample[0],
              std::vector<int32_t>(batch.inputs.begin() + 9 * i, batch.inputs.begin() + 9 * i + 9));
    EXPECT_EQ(sample[1],
              std::vector<int32_t>(batch.targets.begin() + 9 * i, batch.targets.begin() + 9 * i + 9));
  }
}

TEST(TokenWindowsTest, SaysWhereASampleComesFrom) {
  const std::vector<int32_t> tokens = Count(30);
  EXPECT_EQ(TokenWindows(tokens, {.context = 4}).NameOf(2), "the text, tokens [8, 13)");
  EXPECT_EQ(TokenWindows(tokens, {.context = 4, .stride = 1, .name = "a.txt"}).NameOf(2),
            "'a.txt', tokens [2, 7)");
  EXPECT_EQ(TokenWindows(tokens, {.context = 4}).fields(), WindowFields(4));
}

TEST(TokenWindowsTest, RefusesBadArguments) {
  const std::vector<int32_t> tokens = Count(5);
  EXPECT_EQ(InvalidArgumentMessage([&] { TokenWindows(tokens, {.context = 5, .name = "a.txt"}); }),
            "token windows: 5 tokens of 'a.txt' are too few: a sample of context 5 takes 6");
  EXPECT_EQ(InvalidArgumentMessage([&] { TokenWindows(tokens, {.context = 0}); }),
            "token windows: context: expected at least 1, got 0");
  EXPECT_EQ(InvalidArgumentMessage([&] { TokenWindows(tokens, {.context = 2, .stride = -1}); }),
            "token windows: stride: expected at least 0, got -1");
}

}  // namespace
}  // namespace weft
