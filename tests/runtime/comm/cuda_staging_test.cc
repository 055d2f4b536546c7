// Tensors on a GPU through the `local` communicator, by way of the CPU.

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "runtime/launch/run_ranks.h"

namespace weft {

// Linked for its helpers.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommConformance);

namespace {

using Values = std::vector<float>;

Tensor Of(World& world, const Values& values) {
  return Tensor::FromValues<float>({static_cast<int64_t>(values.size())}, values, world.allocator());
}

void Check(const Tensor& tensor, const Values& expected) { EXPECT_EQ(tensor.ToVector<float>(), expected); }

void EveryKind(World& world, bool async) {
  const CommOptions options = {.async = async};
  const auto group = world.NewGroup("dp", {0, 1});
  const float mine = static_cast<float>(world.rank());
  const std::vector<int64_t> counts = {1, 2};
  const int64_t own = counts[world.rank()];
  const auto empty = [&](int64_t count) { return Tensor::Empty(world.allocator(), DType::kF32, {count}); };

  const Tensor sum = Of(world, {mine + 1, 10});
  group->AllReduce(sum, sum, ReduceOp::kSum, options).Wait();
  Check(sum, {3, 20});
  const Tensor gathered = empty(3);
  group->AllGather(Of(world, Values(own, mine)), gathered, counts, options).Wait();
  Check(gathered, {0, 1, 1});
  const Tensor piece = empty(own);
  group->ReduceScatter(Of(world, {1, 2, 3}), piece, counts, ReduceOp::kMax, options).Wait();
  Check(piece, world.rank() == 0 ? Values{1} : Values{2, 3});
  const Tensor exchanged = empty(2);
  group->AllToAll(Of(world, {mine, mine + 10}), {{1, 1}}, exchanged, {{1, 1}}, options).Wait();
  Check(exchanged, world.rank() == 0 ? Values{0, 1} : Values{10, 11});
  const Tensor told = Of(world, {mine});
  group->Broadcast(told, 1, options).Wait();
  Check(told, {1});
  const Tensor reduced = Of(world, {7});
  group->Reduce(Of(world, {mine}), reduced, ReduceOp::kSum, 0, options).Wait();
  Check(reduced, {world.rank() == 0 ? 1.0f : 7.0f});
  const Tensor whole = Of(world, {7, 7, 7});
  group->Gather(Of(world, Values(own, mine)), whole, counts, 1, options).Wait();
  Check(whole, world.rank() == 1 ? Values{0, 1, 1} : Values{7, 7, 7});
  const Tensor part = empty(own);
  group->Scatter(Of(world, {4, 5, 6}), part, counts, 0, options).Wait();
  Check(part, world.rank() == 0 ? Values{4} : Values{5, 6});
  const Tensor received = empty(1);
  const int peer = 1 - world.rank();
  group->SendRecv({{{peer, Of(world, {mine})}}}, {{{peer, received}}}, options).Wait();
  Check(received, {static_cast<float>(peer)});
  group->Barrier();
}

TEST(CudaStagingTest, EveryKindOnTwoDevices) {
  const WorldOptions options = {
      .device = DeviceType::kCuda, .threads_per_rank = 1, .comm_timeout = std::chrono::minutes(2)};
  for (bool async : {false, true}) {
    RunRanks(
        2, [async](World& world) { EveryKind(world, async); }, options);
  }
}

TEST(CudaStagingTest, ADeadPeerReleasesTheOther) {
  EXPECT_THROW(RunRanks(2,
                        [](World& world) {
                          const auto group = world.NewGroup("dp", {0, 1});
                          if (world.rank() == 1) throw std::runtime_error("gone");
                          const Tensor sum = Of(world, {1});
                          group->AllReduce(sum, sum, ReduceOp::kSum);
                        },
                        {.device = DeviceType::kCuda, .threads_per_rank = 1}),
               std::runtime_error);
}

}  // namespace
}  // namespace weft
