// What the `local` backend promises beyond the contract: lifetimes, and peers that are threads.

#include "runtime/comm/local/communicator.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

const WorldOptions kOneThread = {.threads_per_rank = 1};

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

// Of those behind the one that waits none ever begins.
TEST(LocalCommunicatorTest, WhatIsQueuedWhenTheGroupEndsIsRecordedAsFailed) {
  RunRanks(
      2,
      [](World& world) {
        const auto group = world.NewGroup("dp", {0, 1});
        const auto gate = world.NewGroup("gate", {0, 1});
        if (world.rank() == 0) {
          std::vector<Work> works;
          for (int i = 0; i < 3; ++i) {
            const Tensor tensor = Filled(world, 5, 1);
            works.push_back(group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true}));
          }
          group->Abort("the disk is full");
          for (const Work& work : works) EXPECT_THROW(work.Wait(), Error);
          const std::vector<FlightEntry> entries = world.flight_recorder().Snapshot().entries;
          EXPECT_EQ(entries.size(), 3u);
          for (const FlightEntry& entry : entries) {
            EXPECT_EQ(FlightStateName(entry.state), "failed") << "#" << entry.sequence;
          }
        }
        gate->Barrier();
      },
      kOneThread);
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

// Element `i` of `rank`'s input: sums in another order have other bits.
float InputElement(int rank, int64_t i) { return 1.0f / static_cast<float>(1 + (i * 7 + rank * 13) % 1009); }

Tensor Input(World& world, int rank, int64_t begin, int64_t count) {
  const Tensor tensor = Filled(world, count, 0);
  for (int64_t i = 0; i < count; ++i) tensor.data<float>()[i] = InputElement(rank, begin + i);
  return tensor;
}

// Every member makes its slice for all: sizes around whole slices and lines, and members in place beside
// members that are not.
TEST(LocalCommunicatorTest, SlicesOfAllReduceMeetWhateverTheSize) {
  for (int num_ranks : {2, 3, 4, 8}) {
    RunRanks(
        num_ranks,
        [](World& world) {
          std::vector<int> ranks(world.size());
          std::iota(ranks.begin(), ranks.end(), 0);
          const auto group = world.NewGroup("dp", ranks);
          for (int64_t count : {129, 130, 16 * 8 + 15, 16 * 8 + 17, 16 * 24 - 1, 16 * 24 + 1, 4099, 70001}) {
            for (int in_place = 0; in_place < 3; ++in_place) {  // nobody, odd ranks, everybody
              const Tensor input = Input(world, world.rank(), 0, count);
              const bool mine = in_place == 2 || (in_place == 1 && world.rank() % 2 == 1);
              const Tensor output = mine ? input : Filled(world, count, -1);
              group->AllReduce(input, output, ReduceOp::kSum);
              for (int64_t i = 0; i < count; ++i) {
                float expected = InputElement(0, i);
                for (int rank = 1; rank < world.size(); ++rank) expected += InputElement(rank, i);
                ASSERT_EQ(output.data<float>()[i], expected) << "element " << i << " of " << count;
              }
              // What peers wrote is in the outputs alone.
              if (mine) continue;
              ASSERT_EQ(input.data<float>()[count - 1], InputElement(world.rank(), count - 1));
            }
          }
        },
        kOneThread);
  }
}

// Slices of the whole cut through pieces: pieces that end anywhere, all in one, in place on some members.
TEST(LocalCommunicatorTest, AllGatherAndBroadcastCopyInSlices) {
  for (int num_ranks : {2, 3, 8}) {
    RunRanks(
        num_ranks,
        [](World& world) {
          const int n = world.size();
          const int me = world.rank();
          std::vector<int> ranks(n);
          std::iota(ranks.begin(), ranks.end(), 0);
          const auto group = world.NewGroup("dp", ranks);
          std::vector<int64_t> one(n), mixed(n), even(n, 1001);
          one[n - 1] = 5003;
          for (int rank = 0; rank < n; ++rank) mixed[rank] = rank % 2 == 0 ? 3 : 2000 + rank;
          for (const std::vector<int64_t>& counts : {one, mixed, even}) {
            const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
            const int64_t begin = std::accumulate(counts.begin(), counts.begin() + me, int64_t{0});
            const Tensor all = Filled(world, total, -1);
            Tensor input = Input(world, me, 0, counts[me]);
            if (me % 2 == 0) {
              const Tensor place = all.Slice(0, begin, counts[me]);
              std::copy_n(input.data<float>(), counts[me], place.data<float>());
              input = place;
            }
            group->AllGather(input, all, counts);
            int64_t next = 0;
            for (int rank = 0; rank < n; ++rank) {
              for (int64_t i = 0; i < counts[rank]; ++i) {
                ASSERT_EQ(all.data<float>()[next++], InputElement(rank, i))
                    << "element " << i << " of " << rank;
              }
            }
            const int root = n - 1;
            const Tensor tensor = Input(world, me, 0, total);
            group->Broadcast(tensor, root);
            for (int64_t i = 0; i < total; ++i) ASSERT_EQ(tensor.data<float>()[i], InputElement(root, i));
          }
        },
        kOneThread);
  }
}

// More than any cache: what is written past the caches is there when the call returns.
TEST(LocalCommunicatorTest, ResultsLargerThanTheCachesAreComplete) {
  static constexpr int64_t kCount = (24 << 18) + 5;
  RunRanks(
      2,
      [](World& world) {
        const auto group = world.NewGroup("dp", {0, 1});
        const Tensor input = Filled(world, kCount, static_cast<float>(world.rank() + 1));
        const Tensor output = Filled(world, kCount, -1);
        const auto expect_all = [&](float expected) {
          EXPECT_EQ(std::count(output.data<float>(), output.data<float>() + kCount, expected), kCount);
        };
        group->AllReduce(input, output, ReduceOp::kSum);
        expect_all(3);
        const int64_t half = kCount / 2;
        group->AllToAll(input.Slice(0, 0, 2 * half), {half, half}, output.Slice(0, 0, 2 * half),
                        {half, half});
        EXPECT_EQ(std::count(output.data<float>(), output.data<float>() + half, 1.0f), half);
        EXPECT_EQ(std::count(output.data<float>() + half, output.data<float>() + 2 * half, 2.0f), half);
        group->AllGather(input.Slice(0, 0, half + world.rank()), output.Slice(0, 0, 2 * half + 1),
                         {half, half + 1});
        EXPECT_EQ(std::count(output.data<float>(), output.data<float>() + half, 1.0f), half);
        EXPECT_EQ(std::count(output.data<float>() + half, output.data<float>() + 2 * half + 1, 2.0f),
                  half + 1);
        group->Broadcast(input, 1);
        EXPECT_EQ(std::count(input.data<float>(), input.data<float>() + kCount, 2.0f), kCount);
      },
      kOneThread);
}

// Members come so far apart that the early ones block, each barrier in another order; a wake-up that is lost
// would last until the timeout.
TEST(LocalCommunicatorTest, TheLastToArriveWakesAllWhoSleep) {
  const auto begin = std::chrono::steady_clock::now();
  RunRanks(6,
           [](World& world) {
             const auto group = world.NewGroup("dp", {0, 1, 2, 3, 4, 5});
             for (int round = 0; round < 6; ++round) {
               std::this_thread::sleep_for(std::chrono::milliseconds(20 * ((world.rank() + round) % 6)));
               const Tensor tensor = Filled(world, round % 2 == 0 ? 1 : 4000, 1);
               group->AllReduce(tensor, tensor, ReduceOp::kSum);
               ASSERT_EQ(tensor.data<float>()[0], 6);
             }
           },
           {.threads_per_rank = 1, .comm_timeout = std::chrono::minutes(2)});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
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
            EXPECT_EQ(error.message(), "group '" + group->name() +
                                           "': all_reduce: f32[4] is on meta, which has nothing to move");
          }
          group->Barrier();
        }
      },
      kOneThread);
}

// Members compare long lists, each at its own pace: none frees its own before the others have read it, which
// AddressSanitizer sees.
TEST(LocalCommunicatorTest, ListsThatDisagreeAreReadBeforeTheyAreFreed) {
  constexpr int kParts = 20000;
  for (int round = 0; round < 10; ++round) {
    const auto body = [](World& world) {
      const auto group = world.NewGroup("dp", {0, 1, 2, 3});
      const auto part_of = [&](const std::vector<int64_t>& counts) {
        const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
        return CollectivePart{
            Filled(world, counts[world.rank()], 0), Filled(world, total, 0), {counts.begin(), counts.end()}};
      };
      // The sums of the counts are equal.
      std::vector<CollectivePart> parts(kParts, part_of({0, 0, 0, 0}));
      parts[kParts - 2] = part_of({1, 0, 0, 0});
      parts[kParts - 1] = part_of({0, 1, 0, 0});
      if (world.rank() == 3) std::swap(parts[kParts - 2], parts[kParts - 1]);
      group->AllGatherEach(parts);
    };
    EXPECT_THAT(InvalidArgumentMessage([&] { RunRanks(4, body, kOneThread); }),
                testing::HasSubstr(": their counts differ in part 19998 of the list"));
  }
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
