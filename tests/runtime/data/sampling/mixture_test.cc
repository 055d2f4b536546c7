#include "runtime/data/sampling/mixture.h"

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

MixturePart Part(int64_t num_samples, double weight, uint64_t seed = 1) {
  return {.sampler = std::make_shared<ShuffledSampler>(num_samples, seed), .weight = weight};
}

// Which part an index into the parts' datasets is of.
size_t PartOf(int64_t index, const std::vector<int64_t>& sizes) {
  size_t k = 0;
  while (index >= sizes[k]) index -= sizes[k++];
  return k;
}

// The shares by hand: floors, and the rest to the largest remainders.
TEST(MixtureTest, QuotasAreTheLargestRemainders) {
  const auto quotas = [](const std::vector<double>& weights, int64_t block) {
    std::vector<MixturePart> parts;
    for (const double weight : weights) parts.push_back(Part(10, weight));
    const MixtureSampler sampler(parts, 1, {.block = block});
    std::vector<int64_t> found;
    for (int k = 0; k < sampler.num_parts(); ++k) found.push_back(sampler.quota(k));
    EXPECT_EQ(std::accumulate(found.begin(), found.end(), int64_t{0}), block);
    return found;
  };
  EXPECT_EQ(quotas({1}, 8), (std::vector<int64_t>{8}));
  EXPECT_EQ(quotas({1, 1}, 8), (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(quotas({1, 1, 1}, 8), (std::vector<int64_t>{3, 3, 2}));  // 2 2/3 each
  EXPECT_EQ(quotas({0.5, 0.3, 0.2}, 1000), (std::vector<int64_t>{500, 300, 200}));
  EXPECT_EQ(quotas({7, 2, 1}, 16), (std::vector<int64_t>{11, 3, 2}));  // 11.2, 3.2, 1.6
  // Weights of any size: a sum that a double does not hold, and the least ones.
  EXPECT_EQ(quotas({0x3p1022, 0x1p1022}, 1024), (std::vector<int64_t>{768, 256}));
  EXPECT_EQ(quotas({0x3p-1074, 0x1p-1074}, 1024), (std::vector<int64_t>{768, 256}));
}

TEST(MixtureTest, ProportionsAreExactOverBlocks) {
  const std::vector<int64_t> sizes = {30, 1000, 7};
  const MixtureSampler sampler({Part(30, 0.5), Part(1000, 0.3), Part(7, 0.2)}, 42, {.block = 50});
  EXPECT_EQ(sampler.num_samples(), 1037);
  std::vector<int64_t> counts(3, 0);
  for (int64_t position = 0; position < 1000; ++position) {
    ++counts[PartOf(sampler.AtPosition(position), sizes)];
    if ((position + 1) % 50 != 0) continue;
    const int64_t blocks = (position + 1) / 50;
    EXPECT_EQ(counts, (std::vector<int64_t>{25 * blocks, 15 * blocks, 10 * blocks}));
  }
}

// Within a block the parts are mixed as cards are: of the first n of a block, part k has n * share on average, and never
// all parts one after another.
TEST(MixtureTest, PartsAreMixedWithinABlock) {
  const std::vector<int64_t> sizes = {10, 10};
  const MixtureSampler sampler({Part(10, 3), Part(10, 1)}, 9, {.block = 40});
  double first_ten = 0;
  for (int64_t block = 0; block < 1000; ++block) {
    for (int64_t i = 0; i < 10; ++i) {
      first_ten += PartOf(sampler.AtPosition(40 * block + i), sizes) == 0 ? 1 : 0;
    }
  }
  // Hypergeometric: mean 7.5, variance 10 (3/4) (1/4) (30/39).
  EXPECT_NEAR(first_ten / 1000, 7.5, 4 * std::sqrt(10 * 0.75 * 0.25 * 30 / 39 / 1000));
}

// The oracle counts: the d-th draw of a part, however they are mixed, is the d-th sample of its own sequence, each once.
TEST(MixtureTest, APartsSamplesAreItsOwnSequenceEachOnce) {
  const std::vector<int64_t> sizes = {6, 11};
  const std::vector<MixturePart> parts = {Part(6, 2, /*seed=*/3), Part(11, 1, /*seed=*/4)};
  const MixtureSampler sampler(parts, 5, {.block = 9});
  for (int64_t block = 0; block < 20; ++block) {
    std::vector<std::vector<int64_t>> drawn(2), expected(2);
    for (int64_t i = 0; i < 9; ++i) {
      const int64_t index = sampler.AtPosition(9 * block + i);
      const size_t k = PartOf(index, sizes);
      drawn[k].push_back(k == 0 ? index : index - 6);
    }
    for (size_t k = 0; k < 2; ++k) {
      const int64_t quota = k == 0 ? 6 : 3;
      for (int64_t d = 0; d < quota; ++d) {
        expected[k].push_back(parts[k].sampler->AtPosition(block * quota + d));
      }
      EXPECT_THAT(drawn[k], testing::UnorderedElementsAreArray(expected[k])) << block << " " << k;
    }
  }
}

TEST(MixtureTest, EpochsAreNamesOfPositions) {
  const MixtureSampler sampler({Part(5, 1), Part(3, 1)}, 1, {.block = 4});
  EXPECT_EQ(sampler.epoch_size(), 8);
  const MixtureSampler named({Part(5, 1), Part(3, 1)}, 1, {.block = 4, .epoch_size = 5});
  for (int64_t position = 0; position < 40; ++position) {
    EXPECT_EQ(named.AtPosition(position), sampler.AtPosition(position));
  }
  EXPECT_EQ(sampler.ToString(),
            "mixture(block 4, seed 1, 2 of shuffled(5, seed 1), 2 of shuffled(3, seed 1))");
}

TEST(MixtureTest, EpochsWithoutEndAreWithoutEndTogether) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const auto endless = std::make_shared<ReplacementSampler>(5, /*epoch_size=*/kMost, /*seed=*/1);
  const std::vector<MixturePart> parts = {{.sampler = endless}, Part(3, 1), {.sampler = endless}};
  const MixtureSampler sampler(parts, 1, {.block = 6});
  EXPECT_EQ(sampler.epoch_size(), kMost);
  const MixtureSampler named(parts, 1, {.block = 6, .epoch_size = 5});
  for (int64_t position = 0; position < 40; ++position) {
    EXPECT_EQ(sampler.AtPosition(position), named.AtPosition(position));
  }
}

TEST(MixtureTest, RefusesBadArguments) {
  EXPECT_EQ(InvalidArgumentMessage([] { MixtureSampler({}, 1); }), "mixture: expected at least one part");
  EXPECT_EQ(InvalidArgumentMessage([] { MixtureSampler({{.sampler = nullptr}}, 1); }),
            "mixture: part 0 has no sampler");
  for (const double weight : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(InvalidArgumentMessage([&] {
                  MixtureSampler({Part(3, 1), Part(3, weight)}, 1);
                }),
                testing::StartsWith("mixture: part 1: weight: expected a number above 0, got"));
  }
  EXPECT_EQ(InvalidArgumentMessage([] {
              MixtureSampler({Part(3, 1), Part(3, 1)}, 1, {.block = 1});
            }),
            "mixture: block: expected at least 2, as many as there are parts, got 1");
  EXPECT_EQ(InvalidArgumentMessage([] {
              MixtureSampler({Part(3, 999), Part(3, 1)}, 1, {.block = 100});
            }),
            "mixture: part 1 has weight 1 of 1000: less than one sample in a block of 100; a block of 1000 "
            "has one");
  EXPECT_EQ(InvalidArgumentMessage([] {
              MixtureSampler({Part(3, 1), Part(3, 1e-300)}, 1);
            }),
            "mixture: part 1 has weight 1e-300 of 1: less than one sample in a block of 1024; no block has "
            "one");
  const auto many = std::make_shared<SequentialSampler>(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(InvalidArgumentMessage([&] {
              MixtureSampler({Part(1, 1), {.sampler = many}}, 1);
            }),
            "mixture: part 1 has 9223372036854775807 samples after 1: expected less than 2^63 together");
  const MixtureSampler sampler({Part(3, 1)}, 1);
  EXPECT_EQ(InvalidArgumentMessage([&] { sampler.At(0, 3); }), "sampler: sample 3 of an epoch of 3");
}

}  // namespace
}  // namespace weft
