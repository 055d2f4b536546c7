#include "runtime/comm/collective.h"

#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

TEST(CollectiveTest, TextNamesWhatMembersMustAgreeOn) {
  using D = CollectiveDescriptor;
  EXPECT_EQ((D{.kind = CollectiveKind::kAllReduce, .dtype = DType::kF32, .op = ReduceOp::kSum, .counts = {12}}
                 .ToString()),
            "all_reduce(f32, sum, count 12)");
  EXPECT_EQ((D{.kind = CollectiveKind::kReduceScatter,
               .dtype = DType::kBF16,
               .op = ReduceOp::kAvg,
               .counts = {3, 4}}
                 .ToString()),
            "reduce_scatter(bf16, avg, counts [3, 4])");
  EXPECT_EQ((D{.kind = CollectiveKind::kGather, .dtype = DType::kU8, .root = 1, .counts = {5}}.ToString()),
            "gather(u8, root 1, counts [5])");
  EXPECT_EQ((D{.kind = CollectiveKind::kReduce,
               .dtype = DType::kI64,
               .op = ReduceOp::kMax,
               .root = 2,
               .counts = {0}}
                 .ToString()),
            "reduce(i64, max, root 2, count 0)");
  EXPECT_EQ((D{.kind = CollectiveKind::kAllToAll, .dtype = DType::kF64, .counts = {1, 0}}.ToString()),
            "all_to_all(f64, counts [1, 0])");
  EXPECT_EQ(D{}.ToString(), "barrier()");
}

// Counted by hand for members that hold 1, 2 and 4 elements of f64: S is 56 bytes.
TEST(CollectiveTest, LedgerBytesCountWhatMembersLack) {
  const auto bytes = [](CollectiveKind kind, CollectiveDescriptor::Counts counts, int root = 0) {
    return LedgerBytes({.kind = kind, .dtype = DType::kF64, .root = root, .counts = counts}, 3);
  };
  // Each of the three lacks what the others hold: (2 + 4) + (1 + 4) + (1 + 2) elements.
  EXPECT_EQ(bytes(CollectiveKind::kAllGather, {1, 2, 4}), 14 * 8);
  EXPECT_EQ(bytes(CollectiveKind::kReduceScatter, {1, 2, 4}), 14 * 8);
  EXPECT_EQ(bytes(CollectiveKind::kAllReduce, {7}), 28 * 8);
  EXPECT_EQ(bytes(CollectiveKind::kBroadcast, {7}, 1), 14 * 8);
  EXPECT_EQ(bytes(CollectiveKind::kReduce, {7}, 1), 14 * 8);
  EXPECT_EQ(bytes(CollectiveKind::kGather, {1, 2, 4}, 2), 3 * 8);
  EXPECT_EQ(bytes(CollectiveKind::kScatter, {1, 2, 4}, 0), 6 * 8);
  EXPECT_EQ(bytes(CollectiveKind::kBarrier, {}), 0);
  EXPECT_EQ(LedgerBytes({.kind = CollectiveKind::kAllReduce, .counts = {7}}, 1), 0);
  EXPECT_THROW(bytes(CollectiveKind::kAllToAll, {1, 2, 4}), Error);
}

}  // namespace
}  // namespace weft
