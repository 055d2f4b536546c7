#include "dtensor/context/propagation_cache.h"

#include <cmath>
#include <functional>

#include "gtest/gtest.h"
#include "ops/attention/attention.h"
#include "ops/elementwise/elementwise.h"
#include "ops/reduce/reduce.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

// A call of sum over one operand of `extent` rows; owns what its key borrows.
class SumCall {
 public:
  explicit SumCall(int64_t extent, DimMask dims = 1, const OpDef& op = kSum)
      : op_(op), attributes_{.dims = dims}, types_{{DType::kF32, {extent, 3}}}, layouts_{Layout(2, 1)} {}

  CallKey key() const {
    CallKey key(op_, &attributes_, like_ ? &*like_ : nullptr);
    for (size_t i = 0; i < types_.size(); ++i) key.AddOperand(types_[i], layouts_[i]);
    return key;
  }
  SumCall&& WithLayout(const Layout& layout) && {
    layouts_ = {layout};
    return std::move(*this);
  }
  SumCall&& WithLike(const Layout& layout) && {
    like_ = layout;
    return std::move(*this);
  }

 private:
  const OpDef& op_;
  ReduceAttributes attributes_;
  std::vector<TensorType> types_;
  std::vector<Layout> layouts_;
  std::optional<Layout> like_;
};

IntrusivePtr<ResolvedCall> PlanNumber(double number) {
  const IntrusivePtr<ResolvedCall> plan = MakeIntrusive<ResolvedCall>();
  plan->strategy.microseconds = number;
  return plan;
}

TEST(PropagationCacheTest, FindsEqualKeysOnly) {
  PropagationCache cache;
  EXPECT_EQ(cache.Find(SumCall(4).key()), nullptr);
  {
    const SumCall call(4);  // the cache keeps copies of what a key borrows
    cache.Insert(call.key(), PlanNumber(1));
  }
  const ResolvedCall* found = cache.Find(SumCall(4).key());
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->strategy.microseconds, 1);
  EXPECT_EQ(cache.Find(SumCall(5).key()), nullptr);
  EXPECT_EQ(cache.Find(SumCall(4, /*dims=*/2).key()), nullptr);
  EXPECT_EQ(cache.Find(SumCall(4, /*dims=*/1, kMean).key()), nullptr);
  EXPECT_EQ(cache.Find(SumCall(4).WithLayout(Layout(2, 1).WithShard(0, 0)).key()), nullptr);
  EXPECT_EQ(cache.Find(SumCall(4).WithLike(Layout(2, 1)).key()), nullptr);
  EXPECT_EQ(cache.stats(), (CacheStats{.hits = 1, .misses = 6}));
}

TEST(PropagationCacheTest, LikeIsPartOfTheKey) {
  PropagationCache cache;
  const Layout like = Layout(2, 1).WithShard(0, 1);
  cache.Insert(SumCall(4).key(), PlanNumber(1));
  cache.Insert(SumCall(4).WithLike(Layout()).key(), PlanNumber(2));
  cache.Insert(SumCall(4).WithLike(like).key(), PlanNumber(3));
  EXPECT_EQ(cache.Find(SumCall(4).key())->strategy.microseconds, 1);
  EXPECT_EQ(cache.Find(SumCall(4).WithLike(Layout()).key())->strategy.microseconds, 2);
  EXPECT_EQ(cache.Find(SumCall(4).WithLike(like).key())->strategy.microseconds, 3);
}

// So many that parts of hashes collide, and keys are compared in full.
TEST(PropagationCacheTest, TellsThousandsOfKeysApart) {
  PropagationCache cache;
  std::vector<Layout> layouts = AllLayouts(DeviceMesh::Parse("a=2,b=2,c=2"), /*ndim=*/2, {ReduceOp::kSum});
  layouts.resize(50);
  const auto for_each_key = [&](const std::function<void(const CallKey& key, double number)>& visit) {
    double number = 0;
    for (int i = 0; i < 50; ++i) {
      for (int j = 0; j < 50; ++j) {
        visit(SumCall(i, static_cast<DimMask>(j)).key(), ++number);
        visit(SumCall(4).WithLayout(layouts[i]).WithLike(layouts[j]).key(), ++number);
      }
    }
  };
  for_each_key([&](const CallKey& key, double number) {
    ASSERT_EQ(cache.Find(key), nullptr) << number;
    cache.Insert(key, PlanNumber(number));
  });
  for_each_key([&](const CallKey& key, double number) {
    const ResolvedCall* found = cache.Find(key);
    ASSERT_NE(found, nullptr) << number;
    ASSERT_EQ(found->strategy.microseconds, number);
  });
}

TEST(PropagationCacheTest, TheOneUsedLongestAgoGoesWhenItIsFull) {
  PropagationCache cache(/*capacity=*/4);
  for (int64_t i = 0; i < 4; ++i) cache.Insert(SumCall(i).key(), PlanNumber(static_cast<double>(i)));
  EXPECT_NE(cache.Find(SumCall(0).key()), nullptr);
  cache.Insert(SumCall(4).key(), PlanNumber(4));
  EXPECT_EQ(cache.size(), 4);
  EXPECT_EQ(cache.stats().evictions, 1);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(cache.Find(SumCall(i).key()) != nullptr, i != 1) << i;
}

// Calls of every step beside those of one length alone, as where batches are of varying lengths.
TEST(PropagationCacheTest, CallsInUseStayUnderVaryingShapes) {
  PropagationCache cache(/*capacity=*/8);
  for (int64_t i = 1000; i < 1003; ++i) cache.Insert(SumCall(i).key(), PlanNumber(static_cast<double>(i)));
  for (int64_t length = 0; length < 100; ++length) {
    for (int64_t i = 1000; i < 1003; ++i) ASSERT_NE(cache.Find(SumCall(i).key()), nullptr) << length;
    cache.Insert(SumCall(length).key(), PlanNumber(0));
  }
}

TEST(PropagationCacheTest, NeverHoldsMoreThanItsCapacity) {
  for (int64_t capacity : {1, 2, 3, 7}) {
    PropagationCache cache(capacity);
    for (int64_t i = 0; i < 50; ++i) {
      const ResolvedCall* inserted = cache.Insert(SumCall(i).key(), PlanNumber(static_cast<double>(i)));
      ASSERT_LE(cache.size(), capacity);
      ASSERT_EQ(inserted->strategy.microseconds, static_cast<double>(i));
      ASSERT_EQ(cache.Find(SumCall(i).key()), inserted);
    }
    EXPECT_EQ(cache.stats().evictions, 50 - cache.size());
  }
}

// No call finds them; they go in their turn, and the others stay.
TEST(PropagationCacheTest, PlansOfAttributesThatAreNaNGoInTheirTurn) {
  PropagationCache cache(/*capacity=*/3);
  const AttentionAttributes attributes = {.scale = std::nan("")};
  CallKey key(kAttention, &attributes);
  key.AddOperand({DType::kF32, {4}}, Layout(1, 1));
  cache.Insert(SumCall(4).key(), PlanNumber(-1));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(cache.Find(key), nullptr);
    EXPECT_EQ(cache.Insert(key, PlanNumber(i))->strategy.microseconds, i);
    ASSERT_NE(cache.Find(SumCall(4).key()), nullptr) << i;
  }
  EXPECT_EQ(cache.size(), 3);
  EXPECT_EQ(cache.stats().evictions, 98);
}

TEST(PropagationCacheTest, InsertingAgainReplaces) {
  PropagationCache cache;
  cache.Insert(SumCall(4).key(), PlanNumber(1));
  cache.Insert(SumCall(4).key(), PlanNumber(2));
  EXPECT_EQ(cache.size(), 1);
  EXPECT_EQ(cache.Find(SumCall(4).key())->strategy.microseconds, 2);
}

}  // namespace
}  // namespace weft
