// What the `local` backend promises beyond the contract: lifetimes, and peers that are threads.

#include "runtime/comm/local/communicator.h"

#include <chrono>
#include <optional>
#include <stdexcept>
#include <thread>

#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

constexpr RunRanksOptions kOneThread = {.threads_per_rank = 1};

Tensor Filled(World& world, int64_t count, float value) {
  const Tensor tensor = Tensor::Empty(world.allocator(), DType::kF32, {count});
  std::fill_n(tensor.data<float>(), count, value);
  return tensor;
}

TEST(LocalCommunicatorTest, DroppingItWithWorkInFlightRunsTheWork) {
  std::vector<std::vector<Tensor>> outputs(3);
  RunRanks(
      3,
      [&](World& world) {
        auto group = world.NewGroup("dp", {0, 1, 2});
        for (int i = 0; i < 50; ++i) {
          outputs[world.rank()].push_back(Filled(world, 1000, 0));
          group->AllReduce(Filled(world, 1000, static_cast<float>(i + world.rank())),
                           outputs[world.rank()].back(), ReduceOp::kSum, {.async = true});
        }
        group.reset();
      },
      kOneThread);
  for (const std::vector<Tensor>& of_rank : outputs) {
    for (int i = 0; i < 50; ++i) EXPECT_EQ(of_rank[i].data<float>()[999], 3 * i + 3);
  }
}

TEST(LocalCommunicatorTest, DroppingWorkThatPeersNeverJoinDoesNotHang) {
  const auto begin = std::chrono::steady_clock::now();
  std::optional<Work> orphan;
  RunRanks(
      2,
      [&](World& world) {
        auto group = world.NewGroup("dp", {0, 1});
        auto pair = world.NewGroup("pp", {0, 1});
        if (world.rank() == 1) return;
        orphan =
            group->AllReduce(Filled(world, 1000, 0), Filled(world, 1000, 0), ReduceOp::kSum, {.async = true});
        pair->Send(Filled(world, 3, 0), 1, {.async = true});
      },
      kOneThread);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  try {
    orphan->Wait();
    FAIL() << "it cannot have worked";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
  }
}

TEST(LocalCommunicatorTest, AnExceptionWithWorkInFlightUnwindsAtOnce) {
  for (int64_t count : {1, 200000}) {
    const auto body = [&](World& world) {
      const auto group = world.NewGroup("dp", {0, 1, 2});
      std::vector<Work> works;
      for (int i = 0; i < 20; ++i) {
        const Tensor tensor = Filled(world, count, 1);
        works.push_back(group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true}));
        if (world.rank() == 2 && i == 10) throw std::out_of_range("lost");
      }
      group->Barrier();
    };
    EXPECT_THROW(RunRanks(3, body, kOneThread), std::out_of_range);
  }
}

// The peers that still read a member's memory when the group fails hold it back until they are done.
TEST(LocalCommunicatorTest, AbortWhilePeersCopyFreesNothingUnderThem) {
  for (int round = 0; round < 20; ++round) {
    RunRanks(
        3,
        [&](World& world) {
          const auto group = world.NewGroup("dp", {0, 1, 2});
          std::thread aborter;
          if (world.rank() == 0) {
            aborter = std::thread([&] {
              std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
              group->Abort("now");
            });
          }
          EXPECT_THROW(
              {
                for (;;) {
                  const Tensor tensor = Filled(world, 50000, 1);
                  group->AllReduce(tensor, tensor, ReduceOp::kSum);
                  group->SendRecv({{(group->rank() + 1) % 3, Filled(world, 50000, 1)}},
                                  {{(group->rank() + 2) % 3, tensor}});
                }
              },
              Error);
          if (aborter.joinable()) aborter.join();
        },
        kOneThread);
  }
}

TEST(LocalCommunicatorTest, WhoWaitsForARankThatHasEndedIsToldAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  RunRanks(
      4,
      [](World& world) {
        if (world.rank() == 3) return;  // never even makes the group
        const auto group = world.NewGroup("dp", {0, 1, 2, 3});
        if (world.rank() == 2) return;
        try {
          world.rank() == 0 ? group->Barrier() : static_cast<void>(group->Recv(Filled(world, 1, 0), 2));
          ADD_FAILURE() << "nothing was thrown";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
          EXPECT_NE(error.message().find("whose rank function has returned"), std::string::npos)
              << error.message();
        }
      },
      kOneThread);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(LocalCommunicatorTest, AWorkLetsGoOfItsTensorsBeforeItIsFinished) {
  RunRanks(
      2,
      [](World& world) {
        const auto group = world.NewGroup("dp", {0, 1});
        for (int i = 0; i < 100; ++i) {
          const Tensor tensor = Filled(world, 1000, 1);
          const Work work = group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
          work.Wait();
          EXPECT_EQ(tensor.buffer()->use_count(), 1);
          group->AllReduce(tensor, tensor, ReduceOp::kSum);
          EXPECT_EQ(tensor.buffer()->use_count(), 1);
        }
      },
      kOneThread);
}

TEST(LocalCommunicatorTest, ManyCommunicatorsComeAndGo) {
  RunRanks(
      2,
      [](World& world) {
        for (int i = 0; i < 200; ++i) {
          const auto group = world.NewGroup("dp", {0, 1});
          const Tensor tensor = Filled(world, 1000, 1);
          group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true}).Wait();
          EXPECT_EQ(tensor.data<float>()[0], 2);
        }
      },
      kOneThread);
}

TEST(LocalCommunicatorTest, MetaTensorsAreRefusedAndTheGroupLives) {
  RunRanks(
      2,
      [](World& world) {
        const Tensor meta = Tensor::Empty(MakeMetaAllocator(), DType::kF32, {4});
        for (const auto& group : {world.NewGroup("dp", {0, 1}), world.NewGroup("solo", {world.rank()})}) {
          try {
            group->AllReduce(meta, meta, ReduceOp::kSum);
            ADD_FAILURE() << "nothing was thrown";
          } catch (const Error& error) {
            EXPECT_EQ(error.message(),
                      "group '" + group->name() +
                          "': all_reduce: f32[4] is on meta, the local communicator moves cpu "
                          "tensors alone");
          }
          group->Barrier();
        }
      },
      kOneThread);
}

TEST(LocalCommunicatorTest, MembersThatMakeGroupsInAnotherOrderAreTold) {
  std::atomic<int> num_errors = 0;
  RunRanks(
      2,
      [&](World& world) {
        const bool is_first = world.rank() == 0;
        try {
          const auto a = world.NewGroup(is_first ? "dp" : "tp", {0, 1});
          const auto b = world.NewGroup(is_first ? "tp" : "dp", {0, 1});
          a->Barrier();
        } catch (const Error& error) {
          ++num_errors;
          EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
          EXPECT_NE(error.message().find("same order"), std::string::npos) << error.message();
        }
      },
      kOneThread);
  EXPECT_EQ(num_errors, 2);
}

}  // namespace
}  // namespace weft
