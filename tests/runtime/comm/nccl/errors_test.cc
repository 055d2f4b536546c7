// What the `nccl` backend makes of a library, a device or a meeting that fails.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "runtime/base/error.h"
#include "runtime/device/cuda/stream.h"
#include "runtime/store/forwarding_store.h"
#include "runtime/store/store.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/runtime/comm/nccl/nccl_calls.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

TEST(NcclErrorsTest, AFailedCallEndsTheGroupOnAllMembersWithItsNameAndText) {
  for (const char* call : {"ncclAllReduce", "ncclGroupEnd"}) {
    const auto fake = std::make_shared<FakeNccl>();
    fake->FailNext(call, 1, NcclResult::kInternalError);
    std::barrier all(3);
    RunNcclRanks(
        3,
        [&](World& world) {
          const auto group = world.NewGroup("dp", AllRanks(world));
          const Tensor tensor = Of(world, {1});
          all.arrive_and_wait();  // in the group
          const std::string message = ErrorOf(absl::StatusCode::kInternal, [&] {
            group->AllReduce(tensor, tensor, ReduceOp::kSum);
            BlockUntilItEnds(*group);
          });
          ExpectContains(message, {"group 'dp', collective #1", call, "error 3", "the fake's last words"});
          EXPECT_EQ(ErrorOf(absl::StatusCode::kInternal, [&] { group->Barrier(); }), message);
        },
        fake);
    EXPECT_EQ(fake->NumLive(), 0);
  }
}

TEST(NcclErrorsTest, AnAsynchronousErrorEndsTheGroupOnAllMembers) {
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier all(3);
  RunNcclRanks(
      3,
      [&](World& world) {
        const auto group = world.NewGroup("dp", AllRanks(world));
        group->Barrier();
        all.arrive_and_wait();  // through the first barrier
        if (world.rank() == 0) fake->SetAsyncError(2, NcclResult::kUnhandledCudaError);
        ExpectContains(ErrorOf(absl::StatusCode::kInternal, [&] { BlockUntilItEnds(*group); }),
                       {"an asynchronous error"});
      },
      fake);
}

// NCCL meets calls that differ in words of its own, such as "message truncated": what they are is the better reason.
TEST(NcclErrorsTest, AnErrorOfNcclOverCallsThatDifferNamesTheCalls) {
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier all(2);
  RunNcclRanks(
      2,
      [&](World& world) {
        const auto group = world.NewGroup("dp", {0, 1});
        const Tensor tensor = Of(world, Values(4 + world.rank(), 1));
        const std::string message = ErrorOf(absl::StatusCode::kInvalidArgument, [&] {
          group->AllReduce(tensor, tensor, ReduceOp::kSum);
          all.arrive_and_wait();
          if (world.rank() == 1) fake->SetAsyncError(1, NcclResult::kInvalidUsage);
          BlockUntilItEnds(*group);
        });
        ExpectContains(message, {"group 'dp', collective #1", "rank 0 called all_reduce(f32, sum, count 4)",
                                 "rank 1 called all_reduce(f32, sum, count 5)"});
      },
      fake);
}

// Counts what a rank reads of other members' logs.
class CountingStore final : public ForwardingStore {
 public:
  CountingStore(std::shared_ptr<Store> store, std::atomic<int>* num_reads)
      : ForwardingStore(std::move(store)), num_reads_(num_reads) {}

  std::optional<std::string> TryGet(absl::string_view key) override {
    *num_reads_ += absl::StrContains(key, "/at/") || absl::StrContains(key, "/last/");
    return ForwardingStore::TryGet(key);
  }

 private:
  std::atomic<int>* const num_reads_;
};

// All members hear of a peer that is gone. If each read the logs of all, a large job would call its store millions of times.
TEST(NcclErrorsTest, OneMemberReadsTheLogsOfAll) {
  constexpr int kRanks = 8;
  std::array<std::atomic<int>, kRanks> num_reads = {};
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier all(kRanks);
  const auto body = [&](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    all.arrive_and_wait();  // in the group, and in no call of it that could be late
    for (int rank = 0; world.rank() == 0 && rank < kRanks; ++rank) {
      fake->SetAsyncError(rank, NcclResult::kRemoteError);
    }
    all.arrive_and_wait();
    ExpectContains(ErrorOf(absl::StatusCode::kAborted, [&] { BlockUntilItEnds(*group); }),
                   {"group 'dp'", "remote process exited"});
  };
  RunNcclRanks(kRanks, body, fake, std::chrono::minutes(2), {.tell = [](const std::string&) {}}, {},
               [&](std::shared_ptr<Store> store, int rank) {
                 return std::make_shared<CountingStore>(std::move(store), &num_reads[rank]);
               });
  int num_readers = 0;
  for (const std::atomic<int>& reads : num_reads) num_readers += reads > 0;
  EXPECT_EQ(num_readers, 1);
}

// Takes no member's log: it is full, or the log is too long for it.
class RefusingStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  void Set(absl::string_view key, absl::string_view value) override {
    if (absl::StrContains(key, "/at/")) Throw(absl::StatusCode::kResourceExhausted, "the store is full");
    ForwardingStore::Set(key, value);
  }
};

// Rank 1 is in no call of the group that could be late, and NCCL does not tell it either.
TEST(NcclErrorsTest, AMemberWhoseLogTheStoreRefusesHearsOfTheEnd) {
  const auto fake = std::make_shared<FakeNccl>();
  fake->set_aborts_are_heard(false);
  std::barrier all(2);
  const auto body = [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    all.arrive_and_wait();  // in the group
    if (world.rank() == 0) {
      fake->SetAsyncError(0, NcclResult::kRemoteError);
      ErrorOf(absl::StatusCode::kAborted, [&] { BlockUntilItEnds(*group); });
    }
    all.arrive_and_wait();  // it has ended for rank 0
    if (world.rank() == 1) {
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      const std::string message = ErrorOf(absl::StatusCode::kAborted, [&] {
        while (std::chrono::steady_clock::now() < give_up) {
          SendToItself(world, *group);
          std::this_thread::sleep_for(milliseconds(5));
        }
      });
      ExpectContains(message, {"group 'dp'", "remote process exited"});
    }
    all.arrive_and_wait();  // rank 0 has not finished till then
  };
  RunNcclRanks(2, body, fake, std::chrono::minutes(2), {.tell = [](const std::string&) {}}, {},
               [](std::shared_ptr<Store> store, int /*rank*/) {
                 return std::make_shared<RefusingStore>(std::move(store));
               });
}

TEST(NcclErrorsTest, AnErrorOfTheDeviceEndsTheGroupOnAllMembers) {
  std::barrier all(2);
  RunNcclRanks(2, [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    all.arrive_and_wait();  // in the group
    std::atomic<bool> ended = false;
    std::thread device([&] {
      while (!ended) {
        cuda_emulator::FailNext("cudaEventQuery", cudaErrorIllegalAddress);
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
    ExpectContains(ErrorOf(absl::StatusCode::kInternal, [&] { BlockUntilItEnds(*group); }),
                   {"read or wrote memory that is not its own"});
    ended = true;
    device.join();
  });
  try {
    CudaEvent().Test();  // the last failure that was planned is not the next test's
  } catch (const Error&) {
  }
}

// On a device that is lost every call fails, those too that end the group.
TEST(NcclErrorsTest, ADeviceThatIsLostEndsTheGroupWithItsName) {
  constexpr const char* kLostCalls[] = {"cudaEventRecord", "cudaStreamWaitEvent"};
  std::barrier all(2);
  RunNcclRanks(2, [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const Tensor tensor = Of(world, {1});
    group->AllReduce(tensor, tensor, ReduceOp::kSum);
    EXPECT_EQ(tensor.ToVector<float>(), Values{2});
    EXPECT_GT(world.ledger().seconds(), 0);  // it is known to be over
    all.arrive_and_wait();
    for (const char* call : kLostCalls) cuda_emulator::FailAlways(call, cudaErrorIllegalAddress);
    ExpectContains(
        ErrorOf(absl::StatusCode::kInternal, [&] { group->AllReduce(tensor, tensor, ReduceOp::kSum); }),
        {"group 'dp', collective #2", "read or wrote memory that is not its own"});
    all.arrive_and_wait();
    for (const char* call : kLostCalls) cuda_emulator::FailAlways(call, cudaSuccess);
    // Now nothing is under way, or RunNcclRanks does not return.
  });
}

// What NCCL was given before, and part of a call that fails, may use its tensors until NCCL has aborted.
TEST(NcclErrorsTest, ACallThatFailsThrowsBehindTheAbort) {
  const auto fake = std::make_shared<FakeNccl>();
  std::latch has_thrown(1);
  RunNcclRanks(
      2,
      [&](World& world) {
        const auto group = world.NewGroup("dp", {0, 1});
        if (world.rank() == 1) return has_thrown.wait();
        const Tensor tensor = Of(world, {1});
        group->AllReduce(tensor, tensor, ReduceOp::kSum);  // rank 1 does not come
        fake->FailNext("ncclGroupEnd", 0, NcclResult::kInternalError);
        fake->HoldAborts(true);
        std::atomic<bool> is_let_go = false;
        std::thread nccl([&] {
          while (fake->NumHeldAborts() == 0) std::this_thread::sleep_for(milliseconds(1));
          std::this_thread::sleep_for(milliseconds(50));  // the call would have thrown
          is_let_go = true;
          fake->HoldAborts(false);
        });
        ErrorOf(absl::StatusCode::kInternal, [&] { group->AllReduce(tensor, tensor, ReduceOp::kSum); });
        EXPECT_TRUE(is_let_go);
        nccl.join();
        has_thrown.count_down();
      },
      fake);
}

// An abort of NCCL's waits for the whole device, and a kernel of another group may wait there for a peer. Only that group's verdict
// can end it.
TEST(NcclErrorsTest, AnAbortThatTakesLongKeepsNoOtherGroupFromItsVerdict) {
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier all(2);
  RunNcclRanks(
      2,
      [&](World& world) {
        const auto first = world.NewGroup("dp", AllRanks(world));
        const auto second = world.NewGroup("tp", AllRanks(world));
        all.arrive_and_wait();
        fake->HoldAborts(true);
        first->Abort("the disk is full");
        ErrorOf(absl::StatusCode::kAborted, [&] { first->Barrier(); });
        const Tensor tensor = Of(world, std::vector<float>(world.rank() + 1));
        const std::string message = ErrorOf(absl::StatusCode::kInvalidArgument, [&] {
          second->AllReduce(tensor, tensor, ReduceOp::kSum);
          BlockUntilItEnds(*second);
        });
        ExpectContains(message, {"group 'tp', collective #1", "count 1", "count 2"});
        all.arrive_and_wait();
        EXPECT_EQ(fake->NumAborted(), 0);
        all.arrive_and_wait();
        fake->HoldAborts(false);
      },
      fake);
  EXPECT_EQ(fake->NumLive(), 0);
}

// The member that ends the group has a reason; that NCCL only sees it go is not it. Rank 0 is in the group,
// or still on its way there.
TEST(NcclErrorsTest, WhoHearsOfAnAbortWaitsForItsReason) {
  for (bool heard : {false, true}) {
    for (bool connecting : {false, true}) {
      const auto fake = std::make_shared<FakeNccl>();
      fake->set_aborts_are_heard(heard);
      if (connecting) fake->HoldConnecting(0);
      std::barrier all(3);
      RunNcclRanks(
          3,
          [&](World& world) {
            const std::string message = ErrorOf(absl::StatusCode::kAborted, [&] {
              const auto group = world.NewGroup("dp", AllRanks(world));
              if (!connecting) all.arrive_and_wait();
              if (world.rank() == 1) group->Abort("the disk is full");
              const Tensor tensor = Of(world, {1});
              group->AllReduce(tensor, tensor, ReduceOp::kSum);
              BlockUntilItEnds(*group);
            });
            ExpectContains(message, {"group 'dp' was aborted by world rank 1: the disk is full"});
          },
          fake);
      EXPECT_EQ(fake->NumLive(), 0);
    }
  }
}

TEST(NcclErrorsTest, AFailedMeetingIsToldToAllMembers) {
  for (const char* call : {"ncclGetUniqueId", "ncclCommInitRankConfig"}) {
    const auto fake = std::make_shared<FakeNccl>();
    fake->FailNext(call, 0, NcclResult::kInternalError);
    RunNcclRanks(
        2,
        [call](World& world) {
          try {
            world.NewGroup("dp", {0, 1});
            ADD_FAILURE() << "it cannot have worked";
          } catch (const Error& error) {
            ExpectContains(error.message(), {call, "error 3"});
          }
        },
        fake);
    EXPECT_EQ(fake->NumLive(), 0);
  }
}

// Nobody says why, so that is all there is to say.
TEST(NcclErrorsTest, AMeetingThatLosesAMemberIsToldToAllMembers) {
  const auto fake = std::make_shared<FakeNccl>();
  for (int rank : {0, 1}) fake->HoldConnecting(rank);
  fake->SetAsyncError(0, NcclResult::kRemoteError);
  RunNcclRanks(
      2,
      [](World& world) {
        const std::string message = ErrorOf(absl::StatusCode::kAborted, [&] {
          world.NewGroup("dp", {0, 1});
        });
        ExpectContains(message, {"NCCL: an asynchronous error: remote process exited"});
      },
      fake);
  EXPECT_EQ(fake->NumLive(), 0);
}

// milliseconds::max() added to the present is the past.
TEST(NcclErrorsTest, WhoWaitsForMembersForEverMeetsThem) {
  NcclOptions options = FastNcclOptions();
  options.connect_timeout = milliseconds::max();
  RunNcclRanks(
      2,
      [](World& world) {
        // The other one waits for it.
        if (world.rank() == 1) std::this_thread::sleep_for(milliseconds(50));
        world.NewGroup("dp", {0, 1});
      },
      std::make_shared<FakeNccl>(), std::chrono::minutes(2), {.tell = [](const std::string&) {}}, {}, nullptr,
      options);
}

}  // namespace
}  // namespace weft
