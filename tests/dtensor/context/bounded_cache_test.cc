#include "dtensor/context/bounded_cache.h"

#include <algorithm>
#include <list>
#include <memory>
#include <random>
#include <utility>

#include "gtest/gtest.h"

namespace weft {
namespace {

using Cache = BoundedCache<int, std::shared_ptr<const int>>;

std::shared_ptr<const int> Number(int value) { return std::make_shared<const int>(value); }

TEST(BoundedCacheTest, FindsCountsAndReplaces) {
  Cache cache(/*capacity=*/2);
  EXPECT_EQ(cache.Find(1), nullptr);
  EXPECT_EQ(*cache.Insert(1, Number(10)), 10);
  EXPECT_EQ(*cache.Find(1), 10);
  EXPECT_EQ(*cache.Insert(1, Number(11)), 11);
  EXPECT_EQ(*cache.Find(1), 11);
  EXPECT_EQ(cache.size(), 1);
  EXPECT_EQ(cache.stats(), (CacheStats{.hits = 2, .misses = 1}));
}

// Against a list in the order of use, for every way to find, insert and replace.
TEST(BoundedCacheTest, TheOneUsedLongestAgoGoes) {
  for (const int64_t capacity : {1, 2, 3, 17, 64}) {
    std::mt19937 random(static_cast<unsigned>(capacity));
    Cache cache(capacity);
    std::list<std::pair<int, int>> model;  // (key, value), the last used first
    int64_t evictions = 0;
    for (int i = 0; i < 20'000; ++i) {
      // Few keys often, many now and then.
      const int key = static_cast<int>(random() % (random() % 4 == 0 ? 3 * capacity + 1 : capacity / 2 + 1));
      const auto known =
          std::find_if(model.begin(), model.end(), [&](const auto& entry) { return entry.first == key; });
      if (random() % 3 != 0) {
        const std::shared_ptr<const int> found = cache.Find(key);
        ASSERT_EQ(found != nullptr, known != model.end()) << i;
        if (found == nullptr) continue;
        ASSERT_EQ(*found, known->second);
        model.splice(model.begin(), model, known);
        continue;
      }
      cache.Insert(key, Number(i));
      if (known != model.end()) {
        model.erase(known);
      } else if (static_cast<int64_t>(model.size()) == capacity) {
        model.pop_back();
        ++evictions;
      }
      model.emplace_front(key, i);
      ASSERT_EQ(cache.size(), static_cast<int64_t>(model.size()));
      ASSERT_EQ(cache.stats().evictions, evictions);
    }
    EXPECT_GT(evictions, 100);
  }
}

// What runs shares its value with the cache.
TEST(BoundedCacheTest, AValueOutlivesItsEntry) {
  Cache cache(/*capacity=*/1);
  const std::shared_ptr<const int> kept = cache.Insert(1, Number(10));
  const std::weak_ptr<const int> other = cache.Insert(2, Number(20));
  EXPECT_EQ(cache.Find(1), nullptr);
  EXPECT_EQ(*kept, 10);
  cache.Insert(3, Number(30));
  EXPECT_TRUE(other.expired());
}

TEST(BoundedCacheTest, GoesOnAfterAMove) {
  Cache first(/*capacity=*/2);
  first.Insert(1, Number(10));
  first.Insert(2, Number(20));
  first.Find(1);
  Cache cache(/*capacity=*/8);
  cache.Insert(7, Number(70));
  cache = std::move(first);
  cache.Insert(3, Number(30));
  EXPECT_EQ(cache.Find(2), nullptr);
  EXPECT_EQ(*cache.Find(1), 10);
  EXPECT_EQ(cache.Find(7), nullptr);
  EXPECT_EQ(cache.size(), 2);
}

}  // namespace
}  // namespace weft
