#include "parallel/scheduler/bucket_cut.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace weft {
namespace {

std::vector<int> Cut(const std::vector<int64_t>& bytes, int64_t bucket_bytes, int64_t edge_bytes) {
  std::vector<SizedLeaf> leaves;
  for (const int64_t of_leaf : bytes) leaves.push_back({.bytes = of_leaf});
  return CutBuckets(leaves, bucket_bytes, edge_bytes);
}

std::vector<int64_t> SizesOf(const std::vector<int64_t>& bytes, const std::vector<int>& buckets) {
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    sizes.resize(buckets[i] + 1);
    sizes[buckets[i]] += bytes[i];
  }
  return sizes;
}

TEST(BucketCutTest, TheFirstIsSmallAndTheLastOnesGrowSmaller) {
  const std::vector<int64_t> bytes(100, 1);
  EXPECT_EQ(SizesOf(bytes, Cut(bytes, 20, 2)), (std::vector<int64_t>{2, 20, 20, 20, 19, 9, 5, 2, 1, 2}));
}

TEST(BucketCutTest, WhatIsLargerThanABucketIsAlone) {
  EXPECT_EQ(Cut({1, 50, 1, 1, 50, 1}, 10, 2), (std::vector<int>{0, 1, 2, 2, 3, 4}));
}

TEST(BucketCutTest, KindsShareNoBucket) {
  EXPECT_EQ(CutBuckets({{.bytes = 1, .kind = 0},
                        {.bytes = 1, .kind = 1},
                        {.bytes = 1, .kind = 1},
                        {.bytes = 1, .kind = 0}},
                       100, 100),
            (std::vector<int>{0, 1, 1, 2}));
}

TEST(BucketCutTest, NothingAndEmptyLeaves) {
  EXPECT_TRUE(Cut({}, 10, 1).empty());
  EXPECT_EQ(Cut({0, 0, 0}, 10, 1), (std::vector<int>{0, 0, 0}));
}

// The contract of the header, over random leaves.
TEST(BucketCutTest, EveryBucketHoldsWhatItMay) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<int64_t> bytes(1 + random() % 40);
    for (int64_t& of_leaf : bytes) of_leaf = random() % 4 == 0 ? random() % 60 : random() % 6;
    const int64_t bucket_bytes = 1 + random() % 50, edge_bytes = 1 + random() % 10;
    const int64_t edge = std::min(bucket_bytes, edge_bytes);
    const std::vector<int> buckets = Cut(bytes, bucket_bytes, edge_bytes);
    ASSERT_EQ(buckets.size(), bytes.size());
    ASSERT_EQ(buckets[0], 0);
    int64_t left = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
    const std::vector<int64_t> sizes = SizesOf(bytes, buckets);
    for (size_t begin = 0; begin < bytes.size();) {
      size_t end = begin + 1;
      while (end < bytes.size() && buckets[end] == buckets[begin]) ++end;
      const int64_t held = sizes[buckets[begin]];
      const int64_t most = begin == 0 ? edge : std::min(bucket_bytes, std::max(edge, left / 2));
      if (end > begin + 1) {
        EXPECT_LE(held, most);
      }
      // And no less than it may, unless the tail begins behind it.
      if (end < bytes.size()) {
        EXPECT_EQ(buckets[end], buckets[begin] + 1);
        EXPECT_TRUE(held + bytes[end] > most || left - held <= edge);
      }
      left -= held;
      begin = end;
    }
  }
}

}  // namespace
}  // namespace weft
