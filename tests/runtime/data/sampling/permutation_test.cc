#include "runtime/data/sampling/permutation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <type_traits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/philox.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

RandomKey Key(uint64_t seed, uint64_t epoch = 0) {
  return {.seed = seed, .stream = StreamOf("test"), .step = epoch};
}

std::vector<int64_t> Listed(int64_t n, const RandomKey& key) {
  const Permutation permutation(n, key);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < n; ++i) order.push_back(permutation.At(i));
  return order;
}

bool IsBijection(int64_t n, const RandomKey& key) {
  const Permutation permutation(n, key);
  std::vector<bool> seen(static_cast<size_t>(n), false);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = permutation.At(i);
    if (at < 0 || at >= n || seen[static_cast<size_t>(at)]) return false;
    seen[static_cast<size_t>(at)] = true;
  }
  return true;
}

// The sum of (observed - expected)^2 / expected in units of its deviation, which is 0 +- 1 if all are equally likely: the
// mean of chi-squared is its degrees of freedom, its variance twice them.
double ChiSquaredScore(const std::vector<int64_t>& counts) {
  const double total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const double expected = total / static_cast<double>(counts.size());
  const double degrees = static_cast<double>(counts.size()) - 1;
  double chi_squared = 0;
  for (const int64_t count : counts) {
    chi_squared += std::pow(static_cast<double>(count) - expected, 2) / expected;
  }
  return (chi_squared - degrees) / std::sqrt(2 * degrees);
}

TEST(PermutationTest, IsABijectionForEverySize) {
  for (int64_t n = 1; n <= 300; ++n) {
    for (uint64_t seed = 0; seed < 3; ++seed) ASSERT_TRUE(IsBijection(n, Key(seed))) << n;
  }
  for (int bits = 9; bits <= 17; ++bits) {
    for (int64_t n = (int64_t{1} << bits) - 1; n <= (int64_t{1} << bits) + 1; ++n) {
      ASSERT_TRUE(IsBijection(n, Key(7, /*epoch=*/5))) << n;
    }
  }
  for (const int64_t prime : {509, 4093, 10007, 65521, 100003})
    ASSERT_TRUE(IsBijection(prime, Key(1))) << prime;
}

TEST(PermutationTest, KnowsLargeSizes) {
  for (const int64_t n : {(int64_t{1} << 32) + 1, (int64_t{1} << 40) - 3, int64_t{1} << 62}) {
    const Permutation permutation(n, Key(3));
    std::vector<int64_t> values;
    for (int64_t i = 0; i < 500; ++i) {
      values.push_back(permutation.At(i));
      values.push_back(permutation.At(n - 1 - i));
    }
    for (const int64_t value : values) ASSERT_TRUE(value >= 0 && value < n);
    std::sort(values.begin(), values.end());
    EXPECT_EQ(std::unique(values.begin(), values.end()), values.end()) << n;
    // Neighbours do not stay together: the mean of 1000 is half of n, to within 6 deviations of n / sqrt(12 * 1000).
    double mean = 0;
    for (const int64_t value : values) mean += static_cast<double>(value) / 1000;
    EXPECT_NEAR(mean / static_cast<double>(n), 0.5, 6 / std::sqrt(12000.0)) << n;
  }
}

// A value of a few words, whatever the size: nothing that could be a list.
static_assert(sizeof(Permutation) <= 48 && std::is_trivially_copyable_v<Permutation>);

// All n! orders are there, equally often. Fewer rounds, or a network of fewer bits, are told from it
// by tens of deviations.
TEST(PermutationTest, EveryOrderOfAFewIsEquallyLikely) {
  for (const int64_t n : {2, 3, 4, 5, 6}) {
    std::map<std::vector<int64_t>, int64_t> seen;
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    do {
      seen[order] = 0;
    } while (std::next_permutation(order.begin(), order.end()));
    const int64_t num_seeds = std::max<int64_t>(10000, 60 * static_cast<int64_t>(seen.size()));
    for (int64_t seed = 0; seed < num_seeds; ++seed) ++seen.at(Listed(n, Key(static_cast<uint64_t>(seed))));
    std::vector<int64_t> counts;
    for (const auto& [listed, count] : seen) counts.push_back(count);
    EXPECT_LT(std::abs(ChiSquaredScore(counts)), 4) << n;
  }
}

// Where an element goes, and where its neighbour goes from there, are equally likely to be anywhere; over seeds and over
// epochs of one seed.
TEST(PermutationTest, PlacesAndNeighboursAreEquallyLikely) {
  for (const int64_t n : {17, 64, 100}) {
    for (const bool by_epoch : {false, true}) {
      std::vector<int64_t> places(static_cast<size_t>(n), 0), steps(static_cast<size_t>(n) - 1, 0);
      std::vector<int64_t> from_before(static_cast<size_t>(n), 0);
      int64_t before = 0;
      for (uint64_t draw = 0; draw < 8000; ++draw) {
        const Permutation permutation(n, by_epoch ? Key(11, draw) : Key(draw));
        const int64_t a = permutation.At(n / 2), b = permutation.At(n / 2 + 1);
        ++places[static_cast<size_t>(a)];
        ++steps[static_cast<size_t>((b - a + n) % n - 1)];
        if (draw > 0) ++from_before[static_cast<size_t>((a - before + n) % n)];
        before = a;
      }
      EXPECT_LT(std::abs(ChiSquaredScore(places)), 4) << n;
      EXPECT_LT(std::abs(ChiSquaredScore(steps)), 4) << n;
      EXPECT_LT(std::abs(ChiSquaredScore(from_before)), 4) << n << ": seeds or epochs that follow each other";
    }
  }
}

// Fixed points and cycles of a random permutation: 1 on average, and log n + 0.577.
TEST(PermutationTest, HasAsManyFixedPointsAndCyclesAsARandomOrder) {
  constexpr int64_t kSize = 1000, kOrders = 400;
  double fixed = 0, cycles = 0;
  for (uint64_t seed = 0; seed < kOrders; ++seed) {
    const std::vector<int64_t> order = Listed(kSize, Key(seed));
    std::vector<bool> seen(kSize, false);
    for (size_t i = 0; i < kSize; ++i) {
      fixed += order[i] == static_cast<int64_t>(i) ? 1 : 0;
      if (!seen[i]) cycles += 1;
      for (size_t at = i; !seen[at]; at = static_cast<size_t>(order[at])) seen[at] = true;
    }
  }
  EXPECT_NEAR(fixed / kOrders, 1, 4 / std::sqrt(kOrders * 1.0));
  EXPECT_NEAR(cycles / kOrders, std::log(kSize) + 0.5772, 4 * std::sqrt(std::log(kSize) / kOrders));
}

TEST(PermutationTest, SeedStreamAndEpochChangeTheOrder) {
  const std::vector<int64_t> order = Listed(50, Key(1));
  EXPECT_EQ(Listed(50, Key(1)), order);
  EXPECT_NE(Listed(50, Key(2)), order);
  EXPECT_NE(Listed(50, Key(1, 1)), order);
  EXPECT_NE(Listed(50, {.seed = 1, .stream = StreamOf("other"), .step = 0}), order);
}

// The contract of the order: a run that is resumed by a newer Weft goes on with the same samples. The numbers come from a
// second implementation, in Python.
TEST(PermutationTest, GoldenOrders) {
  EXPECT_THAT(Listed(8, Key(1337)), ElementsAre(7, 0, 2, 3, 5, 6, 4, 1));
  const Permutation large(int64_t{1} << 40, Key(1337, 3));
  EXPECT_THAT((std::vector<int64_t>{large.At(0), large.At(1), large.At((int64_t{1} << 40) - 1)}),
              ElementsAre(741054898921, 884645061887, 885869145542));
}

TEST(PermutationTest, RefusesBadArguments) {
  EXPECT_EQ(InvalidArgumentMessage([] { Permutation(0, Key(1)); }),
            "permutation: size: expected 1 to 2^62, got 0");
  EXPECT_EQ(InvalidArgumentMessage([] { Permutation((int64_t{1} << 62) + 1, Key(1)); }),
            "permutation: size: expected 1 to 2^62, got 4611686018427387905");
  EXPECT_EQ(InvalidArgumentMessage([] { Permutation(5, Key(1, uint64_t{1} << 32)); }),
            "permutation: step 4294967296 is not below 2^32");
  const Permutation permutation(5, Key(1));
  EXPECT_EQ(InvalidArgumentMessage([&] { permutation.At(5); }), "permutation: 5 is not within [0, 5)");
  EXPECT_EQ(InvalidArgumentMessage([&] { permutation.At(-1); }), "permutation: -1 is not within [0, 5)");
}

}  // namespace
}  // namespace weft
