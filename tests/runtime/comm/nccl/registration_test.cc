// Memory that groups of the `nccl` backend register with NCCL. What the fake calls a misuse, RunNcclRanks shows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/comm/nccl/groups.h"
#include "runtime/device/device_backend.h"
#include "runtime/store/hash_store.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/message_of.h"
#include "tests/runtime/comm/nccl/nccl_calls.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Of a pool that has room for one of two such tensors.
const DeviceOptions kSmallPool = {.cap_bytes = 1 << 20};
constexpr int64_t kLarge = 160 << 10;
constexpr int64_t kOther = 128 << 10;

NcclOptions Registering(bool registers = true) {
  NcclOptions options = FastNcclOptions();
  options.register_memory = registers;
  return options;
}

void RunRegistering(int num_ranks, const std::function<void(World&)>& body,
                    const std::shared_ptr<FakeNccl>& fake, const DeviceOptions& device_options = {},
                    const NcclOptions& options = Registering()) {
  RunNcclRanks(num_ranks, body, fake, std::chrono::minutes(2), {.tell = [](const std::string&) {}},
               device_options, /*wrap_store=*/nullptr, options);
}

Tensor Of(World& world, int64_t count, float value) {
  return weft::Of(world, Values(static_cast<size_t>(count), value));
}

TEST(NcclRegistrationTest, ABlockIsRegisteredOnceHoweverManyOperationsUseIt) {
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier both(2);
  const auto body = [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const Tensor tensor = weft::Of(world, {1, 2, 3, 4});
    for (int i = 0; i < 3; ++i) group->AllReduce(tensor, tensor, ReduceOp::kSum);
    const Tensor part = tensor.Slice(0, 1, 2);
    group->AllReduce(part, part, ReduceOp::kSum);
    EXPECT_EQ(tensor.ToVector<float>(), (Values{8, 32, 48, 32}));
    both.arrive_and_wait();
    EXPECT_EQ(fake->NumRegistrations(), 2);
    both.arrive_and_wait();
    for (int i = 0; i < 2; ++i) group->Barrier();  // they reduce a byte
    both.arrive_and_wait();
    EXPECT_EQ(fake->NumRegistrations(), 4);
    both.arrive_and_wait();
  };
  RunRegistering(2, body, fake);
  EXPECT_EQ(fake->NumDeregistrations(), 4);
  EXPECT_EQ(fake->NumAborted(), 0);
}

TEST(NcclRegistrationTest, ByDefaultNothingIsRegistered) {
  const auto fake = std::make_shared<FakeNccl>();
  const auto body = [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    {
      const Tensor large = Of(world, kLarge, 1);
      group->AllReduce(large, large, ReduceOp::kSum);
    }
    EXPECT_THAT(Of(world, kOther, 1).ToVector<float>(), Each(1));
  };
  EXPECT_FALSE(NcclOptions().register_memory);
  RunRegistering(2, body, fake, kSmallPool, FastNcclOptions());
  EXPECT_EQ(fake->NumRegistrations(), 0);
}

// Of every call all of its memory, on all members: also what stands in for tensors on the CPU and for small integers.
TEST(NcclRegistrationTest, AllMemoryOfEveryCallIsRegistered) {
  const auto fake = std::make_shared<FakeNccl>();
  const auto body = [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const float me = static_cast<float>(world.rank());
    const int peer = 1 - world.rank();
    const Tensor pair = Of(world, 2, 0);
    group->AllGather(weft::Of(world, {me}), pair, {1, 1});
    EXPECT_EQ(pair.ToVector<float>(), (Values{0, 1}));
    const Tensor piece = Of(world, 1, 0);
    group->ReduceScatter(pair, piece, {1, 1}, ReduceOp::kSum);
    EXPECT_EQ(piece.ToVector<float>(), Values{2 * me});
    group->Broadcast(piece, 1);
    EXPECT_EQ(piece.ToVector<float>(), Values{2});
    const Tensor received = Of(world, 1, 0);
    group->SendRecv({{peer, weft::Of(world, {me})}}, {{peer, received}});
    EXPECT_EQ(received.ToVector<float>(), Values{1 - me});
    const Tensor on_cpu = Tensor::FromValues<float>({2}, Values{me, 1});
    group->AllReduce(on_cpu, on_cpu, ReduceOp::kSum);
    EXPECT_EQ(on_cpu.ToVector<float>(), (Values{1, 2}));
    const std::vector<int32_t> ints = {2000000000, -2000000000};
    const Tensor i32 = Tensor::FromValues<int32_t>({2}, ints, world.allocator());
    group->AllReduce(i32, i32, ReduceOp::kAvg);
    EXPECT_EQ(i32.ToVector<int32_t>(), ints);
    const Tensor empty = Of(world, 0, 0);
    group->AllReduce(empty, empty, ReduceOp::kSum);
    group->Barrier();
  };
  RunRegistering(2, body, fake);
  EXPECT_GE(fake->NumRegistrations(), 2 * 4);
}

// Not before the last operation that uses it is over, though nobody waits for that.
TEST(NcclRegistrationTest, ABlockThatGoesIsDeregisteredWhenNothingUsesIt) {
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier both(2);
  const auto body = [&](World& world) {
    const auto first = world.NewGroup("first", {0, 1});
    const auto second = world.NewGroup("second", {0, 1});
    // Nothing free is older than the large block: the device would be waited for when it goes.
    const Tensor small = Of(world, 1, 0);
    {
      const Tensor large = Of(world, kLarge, 1);
      first->AllReduce(large, large, ReduceOp::kSum);
      EXPECT_THAT(large.ToVector<float>(), Each(2));
      if (world.rank() == 1) {
        both.arrive_and_wait();  // the other is about to need the block
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      second->AllReduce(large, large, ReduceOp::kSum);
    }
    if (world.rank() == 0) both.arrive_and_wait();
    const Tensor other = Of(world, kOther, 3);  // in its place
    both.arrive_and_wait();
    EXPECT_EQ(fake->NumRegistrations(), 4);
    EXPECT_EQ(fake->NumDeregistrations(), 4);
    both.arrive_and_wait();
    first->AllReduce(other, other, ReduceOp::kSum);
    EXPECT_THAT(other.ToVector<float>(), Each(6));
    both.arrive_and_wait();
    EXPECT_EQ(fake->NumRegistrations(), 6);
  };
  RunRegistering(2, body, fake, kSmallPool);
  EXPECT_EQ(fake->NumDeregistrations(), 6);
}

// Nor does it wait for the others to leave: they may wait for what this rank does next.
TEST(NcclRegistrationTest, ABlockGoesThatAGroupHasUsedWhichIsBeingLeft) {
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier both(2);
  const auto body = [&](World& world) {
    auto group = world.NewGroup("dp", {0, 1});
    {
      const Tensor large = Of(world, kLarge, 1);
      group->AllReduce(large, large, ReduceOp::kSum);
    }
    if (world.rank() == 0) {
      group.reset();
      EXPECT_THAT(Of(world, kOther, 3).ToVector<float>(), Each(3));
      EXPECT_GE(fake->NumDeregistrations(), 1);
    }
    both.arrive_and_wait();
  };
  RunRegistering(2, body, fake, kSmallPool);
  EXPECT_EQ(fake->NumDeregistrations(), 2);
}

// NCCL ends registrations when it aborts, and asks no peer then.
TEST(NcclRegistrationTest, ABlockOfAGroupThatIsAbortedGoesWhenNcclHasLetGo) {
  const auto fake = std::make_shared<FakeNccl>();
  fake->HoldAborts(true);
  std::barrier both(2);
  std::thread lets_go([&] {
    while (fake->NumHeldAborts() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    fake->HoldAborts(false);
  });
  const auto body = [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    {
      const Tensor large = Of(world, kLarge, 1);
      group->AllReduce(large, large, ReduceOp::kSum);
      EXPECT_THAT(large.ToVector<float>(), Each(2));
    }
    both.arrive_and_wait();
    group->Abort("enough");
    EXPECT_THAT(Of(world, kOther, 3).ToVector<float>(), Each(3));
    EXPECT_GE(fake->NumAborted(), 1);
    both.arrive_and_wait();
  };
  RunRegistering(2, body, fake, kSmallPool);
  lets_go.join();
  EXPECT_EQ(fake->NumRegistrations(), 2);
  EXPECT_EQ(fake->NumDeregistrations(), 0);
}

TEST(NcclRegistrationTest, WhatNcclRefusesGoesUnregistered) {
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier both(2);
  testing::internal::CaptureStderr();
  const auto body = [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    for (const int64_t count : {kLarge, kOther}) {  // the second takes the place of the first
      const Tensor refused = Of(world, count, 1);
      fake->FailNext("ncclCommRegister", world.rank(), NcclResult::kSystemError);
      for (int i = 0; i < 2; ++i) group->AllReduce(refused, refused, ReduceOp::kSum);
      EXPECT_THAT(refused.ToVector<float>(), Each(4));
    }
    both.arrive_and_wait();
    EXPECT_EQ(fake->NumRegistrations(), 0);
    both.arrive_and_wait();
    const Tensor taken = Of(world, 4, 1);
    group->AllReduce(taken, taken, ReduceOp::kSum);
    EXPECT_THAT(taken.ToVector<float>(), Each(2));
  };
  RunRegistering(2, body, fake, kSmallPool);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(fake->NumRegistrations(), 2);
  for (const char* const rank : {"0", "1"}) {
    const std::string begin = absl::StrCat("weft: world rank ", rank, ": group 'dp': NCCL: ncclCommRegister");
    const size_t at = text.find(begin);
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_EQ(text.find(begin, at + 1), std::string::npos) << text;
  }
  EXPECT_THAT(text, HasSubstr("unhandled system error: the fake's last words; going on with memory that is "
                              "not registered"));
}

// NCCL gives no meaning to a call of which some members have registered their memory.
TEST(NcclRegistrationTest, MembersThatDifferAreTold) {
  cuda_emulator::SetMachine({.num_devices = 2});
  const auto fake = std::make_shared<FakeNccl>();
  const auto store = std::make_shared<HashStore>();
  std::vector<std::string> messages(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto groups =
          MakeNcclGroups(fake, store, rank, MakeAllocator({DeviceType::kCuda, rank}), Registering(rank == 1));
      messages[rank] = MessageOf([&] { groups->Make("dp", {0, 1}, /*ledger=*/nullptr); });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(messages, Each(HasSubstr("rank 1 registers memory with NCCL, rank 0 does not: "
                                       "WEFT_NCCL_REGISTER must be the same on all ranks")));
}

TEST(NcclRegistrationTest, TheEnvironmentSaysWhether) {
  const auto registers = [](const char* value) {
    setenv("WEFT_NCCL_REGISTER", value, /*overwrite=*/1);
    return NcclOptionsFromEnv().register_memory;
  };
  EXPECT_TRUE(registers("1"));
  EXPECT_FALSE(registers("0"));
  EXPECT_FALSE(registers(""));
  EXPECT_EQ(InvalidArgumentMessage([&] { registers("yes"); }),
            "WEFT_NCCL_REGISTER is 'yes'; expected 1 (memory is registered with NCCL) or 0 (it is not)");
  unsetenv("WEFT_NCCL_REGISTER");
  EXPECT_FALSE(NcclOptionsFromEnv().register_memory);
}

}  // namespace
}  // namespace weft
