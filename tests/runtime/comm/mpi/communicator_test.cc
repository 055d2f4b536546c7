// What the `mpi` backend promises beyond the conformance cases: the bits of `local`, more elements than MPI
// counts, lifetimes, what becomes of failed operations.

#include "runtime/comm/mpi/communicator.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>

#include "gtest/gtest.h"
#include "runtime/comm/mpi/group_comm.h"
#include "runtime/comm/mpi/run_collective.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/runtime/comm/conformance.h"
#include "tests/runtime/comm/mpi/program.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Tensor Filled(World& world, int64_t count, float value) {
  const Tensor tensor = Tensor::Empty(world.allocator(), DType::kF32, {count});
  std::fill_n(tensor.data<float>(), count, value);
  return tensor;
}

std::string BytesOf(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.data()), static_cast<size_t>(tensor.num_bytes())};
}

// Every collective, on every dtype: the outputs of this rank, one behind the other.
std::string RunEverything(World& world, int64_t count) {
  const int n = world.size();
  const int me = world.rank();
  const auto group = world.NewGroup("dp", AllRanks(world));
  std::vector<int64_t> counts(n);
  for (int rank = 0; rank < n; ++rank) counts[rank] = count / n + rank * 7 % 5;
  std::vector<int64_t> traded(n);
  for (int peer = 0; peer < n; ++peer) traded[peer] = count / n + (me + peer) % 3;
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const int64_t trade = std::accumulate(traded.begin(), traded.end(), int64_t{0});
  const int64_t begin = std::accumulate(counts.begin(), counts.begin() + me, int64_t{0});
  std::string bytes;
  for (const DType dtype : kAllDTypes) {
    VisitDType(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const auto input = [&](int64_t size) { return InputTensor<T>(world, me, size); };
      const auto keep = [&](const Tensor& tensor) { bytes += BytesOf(tensor); };
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        const Tensor sum = OutputTensor<T>(world, total);
        group->AllReduce(input(total), sum, op);
        keep(sum);
        const Tensor in_place = input(total);
        group->AllReduce(in_place, in_place, op);
        keep(in_place);
        const Tensor piece = OutputTensor<T>(world, counts[me]);
        group->ReduceScatter(input(total), piece, counts, op);
        keep(piece);
        const Tensor place = input(total);
        group->ReduceScatter(place, place.Slice(0, begin, counts[me]), counts, op);
        keep(place.Slice(0, begin, counts[me]));
        const Tensor root = input(total);
        group->Reduce(root, root, op, n - 1);
        if (me == n - 1) keep(root);
      }
      const Tensor all = OutputTensor<T>(world, total);
      group->AllGather(input(counts[me]), all, counts);
      keep(all);
      const Tensor received = OutputTensor<T>(world, trade);
      group->AllToAll(input(trade), traded, received, traded);
      keep(received);
      const Tensor copy = input(total);
      group->Broadcast(copy, n - 1);
      keep(copy);
      const Tensor gathered = OutputTensor<T>(world, total);
      group->Gather(input(counts[me]), gathered, counts, n / 2);
      if (me == n / 2) keep(gathered);
      const Tensor scattered = OutputTensor<T>(world, counts[me]);
      group->Scatter(me == 0 ? input(total) : Tensor(), scattered, counts, 0);
      keep(scattered);
      const Tensor from_left = OutputTensor<T>(world, total);
      group->SendRecv({{(me + 1) % n, input(total)}}, {{(me + n - 1) % n, from_left}});
      keep(from_left);
    });
  }
  return bytes;
}

// Processes against threads of this process, which read each other's memory.
void ExpectTheBitsOfLocal(int num_ranks, int64_t count, const MpiOptions& options) {
  std::vector<std::string> expected(num_ranks);
  // Each process has its own copy made; one at a time would be as long.
  if (TestEnvironment().rank() < num_ranks) {
    RunRanks(num_ranks, [&](World& world) { expected[world.rank()] = RunEverything(world, count); },
             {.threads_per_rank = 1});
  }
  RunMpi(
      num_ranks,
      [&](MpiTestWorld& world) {
        Expect(RunEverything(world, count) == expected[world.rank()], "other bits than local: ", num_ranks,
               " ranks, count ", count);
      },
      options);
}

TEST(MpiCommunicatorTest, EightRanksGetTheBitsOfLocal) {
  ExpectTheBitsOfLocal(8, 5, {});
  ExpectTheBitsOfLocal(8, 20001, {});
}

TEST(MpiCommunicatorTest, BlocksMeetWhateverTheirSize) {
  for (const int64_t block_bytes : {8, 1000, 4096, 100000}) {
    ExpectTheBitsOfLocal(3, 1501, {.block_bytes = block_bytes});
  }
}

// As if an int held 100 at most: pieces in several messages, broadcasts and reductions in several calls.
TEST(MpiCommunicatorTest, MoreElementsThanMpiCounts) {
  ExpectTheBitsOfLocal(4, 3001, {.max_count = 100});
  ExpectTheBitsOfLocal(2, 701, {.block_bytes = 4096, .max_count = 1});
}

TEST(MpiCommunicatorTest, OptionsThatCannotWorkAreRefused) {
  RunMpi(1, [](MpiTestWorld&) {
    EXPECT_NE(
        InvalidArgumentMessage([] { TestEnvironment().NewHub(1, {.max_count = 0}); }).find("max_count 0"),
        std::string::npos);
  });
}

TEST(MpiCommunicatorTest, DroppingItWithWorkInFlightRunsTheWork) {
  RunMpi(3, [](MpiTestWorld& world) {
    std::vector<Tensor> outputs;
    auto group = world.NewGroup("dp", {0, 1, 2});
    for (int i = 0; i < 30; ++i) {
      outputs.push_back(Filled(world, 1000, 0));
      group->AllReduce(Filled(world, 1000, static_cast<float>(i + world.rank())), outputs.back(),
                       ReduceOp::kSum, {.async = true});
    }
    group.reset();
    world.FinishWork();
    for (int i = 0; i < 30; ++i) Expect(outputs[i].data<float>()[999] == 3 * i + 3, "all-reduce ", i);
  });
}

TEST(MpiCommunicatorTest, WhoWaitsForARankThatHasEndedIsToldAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  RunMpi(4, [](MpiTestWorld& world) {
    if (world.rank() == 3) return;  // never even makes the group
    const auto group = world.NewGroup("dp", {0, 1, 2, 3});
    if (world.rank() == 2) return;
    const std::string message = ErrorOf(absl::StatusCode::kAborted, [&] {
      world.rank() == 0 ? group->Barrier() : static_cast<void>(group->Recv(Filled(world, 1, 0), 2));
    });
    // Rank 2 has returned, and dropped the group before.
    ExpectContains(message, {"group 'dp'", "waits for world ranks ["});
    Expect(message.find("whose rank function has returned") != std::string::npos ||
               message.find("which has dropped the group") != std::string::npos,
           message);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(20));
}

TEST(MpiCommunicatorTest, WhoWaitsForAMemberThatHasDroppedTheGroupIsToldAtOnce) {
  RunMpi(2, [](MpiTestWorld& world) {
    const auto gate = world.NewGroup("gate", {0, 1});
    auto group = world.NewGroup("dp", {0, 1});
    if (world.rank() == 1) {
      group.reset();
      return gate->Barrier();
    }
    ExpectContains(
        ErrorOf(absl::StatusCode::kAborted, [&] { group->Barrier(); }),
        {"group 'dp', collective #1, barrier(): world rank 0 waits for world ranks [1], which has dropped"});
    gate->Barrier();
  });
}

TEST(MpiCommunicatorTest, AMemberThatAbortsAmidLargeCollectivesLeavesNothingBehind) {
  for (int round = 0; round < 12; ++round) {
    RunMpi(3, [round](MpiTestWorld& world) {
      const auto group = world.NewGroup("dp", {0, 1, 2});
      std::thread aborter;
      if (world.rank() == 0) {
        aborter = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(700 * round));
          group->Abort("now");
        });
      }
      const std::string message = ErrorOf(absl::StatusCode::kAborted, [&] {
        for (;;) {
          const Tensor tensor = Filled(world, 50000, 1);
          group->AllReduce(tensor, tensor, ReduceOp::kSum);
          group->SendRecv({{(group->rank() + 1) % 3, Filled(world, 50000, 1)}},
                          {{(group->rank() + 2) % 3, tensor}});
        }
      });
      if (aborter.joinable()) aborter.join();
      ExpectContains(message, {"group 'dp' was aborted by world rank 0: now"});
    });
  }
}

// All have entered, so the names of the missing do not help: the member that does not answer is named.
TEST(MpiCommunicatorTest, AMemberThatStopsAmidACollectiveIsNamed) {
  static constexpr int kGivenUp = 77;  // a tag
  RunMpi(3, [](MpiTestWorld& world) {
    const auto gate = world.NewGroup("gate", {0, 1, 2});
    const std::shared_ptr<MpiGroup> group = world.hub()->Join("dp", {0, 1, 2});
    const Tensor tensor = Filled(world, 5000, 1);
    const CollectiveDescriptor descriptor = {
        .kind = CollectiveKind::kAllReduce, .dtype = DType::kF32, .counts = {5000}};
    gate->Barrier();  // so that all enter within two seconds, also on a busy machine
    if (world.rank() != 2) {
      const std::string message = ErrorOf(absl::StatusCode::kDeadlineExceeded, [&] {
        RunMpiCollective(*group,
                         {descriptor, tensor, tensor, {}, 1, milliseconds(world.rank() == 0 ? 2000 : 60000)});
      });
      ExpectContains(
          message,
          {"group 'dp', collective #1, all_reduce(f32, sum, count 5000): world rank 0 waited 2000 ms",
           "all have arrived, but world ranks [2] do not answer"});
      if (world.rank() == 0) MPI_Send(nullptr, 0, MPI_BYTE, 2, kGivenUp, MPI_COMM_WORLD);
      gate->Barrier();
    } else {
      MpiPosting posting;
      posting.descriptor = descriptor;
      posting.sequence = 1;
      posting.copied = false;
      MpiPacketWriter packet(MpiPacketKind::kEnter, group->key());
      posting.Write(packet, 0);
      group->SendToAll(packet);
      // Polls nothing of Weft's until rank 0 has given up.
      for (int i = 0, arrived = 0; i < 30000 && !arrived; ++i) {
        MPI_Iprobe(0, kGivenUp, MPI_COMM_WORLD, &arrived, MPI_STATUS_IGNORE);
        std::this_thread::sleep_for(milliseconds(1));
      }
      MPI_Recv(nullptr, 0, MPI_BYTE, 0, kGivenUp, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      gate->Barrier();
      // So that what the others have begun comes to an end.
      const auto what = [] { return std::string("test"); };
      const auto missing = [] { return std::vector<int>(); };
      const MpiAwaited awaited{.what = what, .missing = missing, .moving = true, .patience = seconds(20)};
      GroupComm(*group, awaited, seconds(20));
    }
  });
}

TEST(MpiCommunicatorTest, AWorkLetsGoOfItsTensorsBeforeItIsFinished) {
  RunMpi(2, [](MpiTestWorld& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    for (const int64_t count : {10, 1000}) {
      const Tensor tensor = Filled(world, count, 1);
      group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true}).Wait();
      Expect(tensor.buffer()->use_count() == 1, "count ", count);
      group->SendRecv({{1 - world.rank(), tensor}}, {{1 - world.rank(), Filled(world, count, 0)}});
      Expect(tensor.buffer()->use_count() == 1, "message of ", count);
    }
  });
}

TEST(MpiCommunicatorTest, ManyCommunicatorsComeAndGo) {
  RunMpi(2, [](MpiTestWorld& world) {
    for (int i = 0; i < 200; ++i) {
      const auto group = world.NewGroup("dp", {0, 1});
      const Tensor tensor = Filled(world, i % 2 == 0 ? 1000 : 10, 1);
      group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true}).Wait();
      Expect(tensor.data<float>()[0] == 2, "group ", i);
    }
  });
}

// Their MPI communicators are made at once, by several threads, in orders that differ from rank to rank.
TEST(MpiCommunicatorTest, ManyGroupsBeginAtOnceInAnyOrder) {
  RunMpi(4, [](MpiTestWorld& world) {
    const int me = world.rank();
    for (int round = 0; round < 5; ++round) {
      std::vector<std::shared_ptr<Communicator>> groups;
      for (int peer = 0; peer < 4; ++peer) {
        if (peer != me) groups.push_back(world.NewGroup("pair", {std::min(me, peer), std::max(me, peer)}));
      }
      groups.push_back(world.NewGroup("all", {0, 1, 2, 3}));
      groups.push_back(world.NewGroup("all too", {0, 1, 2, 3}));
      std::rotate(groups.begin(), groups.begin() + (me + round) % 5, groups.end());
      std::vector<Tensor> tensors;
      std::vector<Work> works;
      for (const auto& group : groups) {
        tensors.push_back(Filled(world, 3000, 1));
        works.push_back(group->AllReduce(tensors.back(), tensors.back(), ReduceOp::kSum, {.async = true}));
      }
      for (size_t i = 0; i < works.size(); ++i) {
        works[i].Wait();
        Expect(tensors[i].data<float>()[2999] == groups[i]->size(), "group ", i);
      }
    }
  });
}

TEST(MpiCommunicatorTest, MetaTensorsAreRefusedAndTheGroupLives) {
  RunMpi(2, [](MpiTestWorld& world) {
    const Tensor meta = Tensor::Empty(MakeMetaAllocator(), DType::kF32, {4});
    const auto group = world.NewGroup("dp", {0, 1});
    ExpectContains(
        ErrorOf(absl::StatusCode::kInvalidArgument, [&] { group->AllReduce(meta, meta, ReduceOp::kSum); }),
        {"group 'dp': all_reduce: f32[4] is on meta"});
    group->Barrier();
  });
}

TEST(MpiCommunicatorTest, MembersThatMakeGroupsInAnotherOrderAreTold) {
  RunMpi(2, [](MpiTestWorld& world) {
    const bool is_first = world.rank() == 0;
    const auto a = world.NewGroup(is_first ? "dp" : "tp", {0, 1});
    const auto b = world.NewGroup(is_first ? "tp" : "dp", {0, 1});
    for (const auto& group : {a, b}) {
      ExpectContains(ErrorOf(absl::StatusCode::kInvalidArgument, [&] { group->Barrier(); }),
                     {"'dp'", "'tp'", "members must make their groups in the same order"});
    }
  });
}

TEST(MpiCommunicatorTest, AnAbortedJobTakesNoNewGroups) {
  const std::string message = ErrorOf(absl::StatusCode::kNotFound, [] {
    RunMpi(3, [](MpiTestWorld& world) {
      const auto group = world.NewGroup("dp", {0, 1, 2});
      if (world.rank() == 2) Throw(absl::StatusCode::kNotFound, "no such file");
      ExpectContains(ErrorOf(absl::StatusCode::kAborted, [&] { group->Barrier(); }),
                     {"rank 2: no such file"});
      ExpectContains(ErrorOf(absl::StatusCode::kAborted,
                             [&] {
                               world.NewGroup("late", {0, 1});
                             }),
                     {"new group 'late': rank 2: no such file"});
    });
  });
  EXPECT_EQ(message, "rank 2: no such file");
}

}  // namespace
}  // namespace weft
