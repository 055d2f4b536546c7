// What a cached call takes from the heap, by counting every operator new of its thread.

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <functional>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/every_operator_new.h"

namespace {

// Of the thread that counts alone: others of the process, such as the one that started the rank, have their
// own business.
std::atomic<pthread_t> counted_thread{};
std::atomic<int64_t> num_allocations{0};

}  // namespace

void BeforeAllocation() {
  if (pthread_equal(counted_thread.load(std::memory_order_relaxed), pthread_self())) {
    num_allocations.fetch_add(1, std::memory_order_relaxed);
  }
}

namespace weft {
namespace {

// Allocations of one call of `call`, once the caches and pools know it.
int64_t AllocationsOf(const std::function<void()>& call) {
  for (int i = 0; i < 3; ++i) call();
  counted_thread = pthread_self();
  const int64_t before = num_allocations;
  for (int i = 0; i < 10; ++i) call();
  const int64_t all = num_allocations - before;
  EXPECT_EQ(all % 10, 0) << "not the same in every call";
  return all / 10;
}

// An output is its handle's value and its buffer; the elements come from the rank's pool. A recorded call has
// a tape node besides.
constexpr int64_t kOutput = 2;
constexpr int64_t kTapeNode = 1;

TEST(AllocationTest, TheCounterCounts) {
  // Volatile, since a compiler may leave out what it sees unused.
  EXPECT_EQ(AllocationsOf([] {
              int* volatile one = new int(1);
              delete one;
            }),
            1);
  EXPECT_EQ(AllocationsOf([] {
              int* volatile many = new int[10];
              delete[] many;
            }),
            1);
}

TEST(AllocationTest, ACachedCallAllocatesItsOutputAndItsTapeNodeAlone) {
  for (const char* mesh : {"", "a=2", "a=2,b=2"}) {
    RunRanks(static_cast<int>(DeviceMesh::Parse(mesh).num_ranks()), [&](World& world) {
      const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse(mesh));
      if (world.rank() != 0) return;  // nothing moves, so that one rank may run alone
      Layout rows(2, context->mesh().num_axes());
      for (int axis = 0; axis < context->mesh().num_axes(); ++axis) rows = rows.WithShard(axis, 0);
      const DTensor x = Full(context, DType::kF32, {16, 4}, 0.5, rows);
      const DTensor y = Full(context, DType::kF32, {16, 4}, 0.25, rows);
      const DTensor leaf = x.RequiresGrad();
      EXPECT_EQ(AllocationsOf([&] { Add(x, y); }), kOutput);
      EXPECT_EQ(AllocationsOf([&] { Scale(x, 2); }), kOutput);
      EXPECT_EQ(AllocationsOf([&] { Slice(x, 1, 1, 2); }), kOutput - 1) << "a view has no buffer of its own";
      EXPECT_EQ(AllocationsOf([&] { Add(leaf, y); }), kOutput + kTapeNode);
      EXPECT_EQ(AllocationsOf([&] { Mul(leaf, y); }), kOutput + kTapeNode) << "both operands are saved";
      EXPECT_EQ(AllocationsOf([&] { Scale(leaf, 2); }), kOutput + kTapeNode) << "the factor is saved";
      // Saving an output takes a handle without history.
      EXPECT_EQ(AllocationsOf([&] { Exp(leaf); }), kOutput + kTapeNode + 1);
    });
  }
}

TEST(AllocationTest, ABackwardPassOfAShortChainAllocatesGradientsAlone) {
  RunRanks(1, [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh());
    const DTensor x = Full(context, DType::kF32, {16}, 0.5);
    const DTensor y = Full(context, DType::kF32, {16}, 0.25);
    const int64_t leaf = AllocationsOf([&] { x.RequiresGrad(); });
    EXPECT_EQ(leaf, 3);  // the handle's value, the node, the log of writes
    const int64_t forward = 3 * (kOutput + kTapeNode);
    const int64_t backward = 2 * kOutput;  // two products; the sum passes its gradient on
    EXPECT_EQ(AllocationsOf([&] { Backward(Mul(Add(Mul(x.RequiresGrad(), y), y), y), y); }),
              leaf + forward + backward);
  });
}

}  // namespace
}  // namespace weft
