// What the ledger, the flight recorder and the watchdog make of operations of the `nccl` backend that their
// stream has not come to, because of what was issued before.

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/flight_recorder.h"
#include "runtime/launch/hangs/hang_verdict.h"
#include "runtime/launch/hangs/rank_status.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/cuda/tensor_stream.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using Values = std::vector<float>;
using std::chrono::milliseconds;

Tensor Of(World& world, const Values& values) {
  return Tensor::FromValues<float>({static_cast<int64_t>(values.size())}, values, world.allocator());
}

// Work in a tensor's stream that lasts until it is told to end.
class Backlog {
 public:
  explicit Backlog(const Tensor& tensor) {
    const cudaError_t error = cuda_emulator::IssueWhenReady(
        CudaStreamOf(tensor).handle(), [has_ended = has_ended_] { return has_ended->load(); });
    EXPECT_EQ(error, cudaSuccess);
  }
  ~Backlog() { End(); }
  Backlog(const Backlog&) = delete;
  Backlog& operator=(const Backlog&) = delete;

  void End() {
    has_ended_->store(true);
    cuda_emulator::NotifyReady();
  }

 private:
  const std::shared_ptr<std::atomic<bool>> has_ended_ = std::make_shared<std::atomic<bool>>(false);
};

double SecondsSince(int64_t ns) { return static_cast<double>(FlightClock() - ns) * 1e-9; }

// Bytes at issue; seconds from where the stream comes to the operation, and known as soon as it is over.
TEST(NcclBacklogTest, TheLedgerCountsNoWaitForWhatWasIssuedBefore) {
  RunNcclRanks(2, [](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const Tensor tensor = Of(world, {1, 2});
    Backlog backlog(tensor);
    group->AllReduce(tensor, tensor, ReduceOp::kSum);
    EXPECT_EQ(world.ledger().num_bytes(), world.rank() == 0 ? 2 * 8 : 0);
    EXPECT_EQ(world.ledger().seconds(), 0);
    std::this_thread::sleep_for(milliseconds(300));
    const int64_t ended_ns = FlightClock();
    backlog.End();
    EXPECT_EQ(tensor.ToVector<float>(), (Values{2, 4}));
    const double seconds = world.ledger().seconds();
    EXPECT_GT(seconds, 0);
    EXPECT_LT(seconds, SecondsSince(ended_ns));
    const FlightEntry entry = world.flight_recorder().Snapshot().entries.at(0);
    EXPECT_EQ(entry.state, FlightEntry::State::kDone);
    EXPECT_GE(entry.begun_ns, ended_ns);
    EXPECT_LE(entry.ended_ns, FlightClock());
  });
}

// Both ranks have issued the call; only rank 0's stream has come to it.
TEST(NcclBacklogTest, AnOperationIsUnderWayWhereItsStreamHasComeToIt) {
  std::barrier all(2);
  std::vector<RankReport> reports(2);
  RunNcclRanks(2, [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const auto report = [&] {
      reports[world.rank()] = {.rank = world.rank(),
                               .status = StatusOf(world.rank(), world.flight_recorder())};
    };
    const auto is_blocked = [&] {
      return StatusOf(world.rank(), world.flight_recorder()).blocked_in() != nullptr;
    };
    const Tensor tensor = Of(world, {1, 2});
    Backlog backlog(tensor);
    group->AllReduce(tensor, tensor, ReduceOp::kSum);
    std::this_thread::sleep_for(milliseconds(20));  // several rounds of the monitor
    EXPECT_FALSE(is_blocked());
    report();
    all.arrive_and_wait();
    EXPECT_FALSE(ExplainHang(reports, world.rank()).has_value());
    all.arrive_and_wait();
    if (world.rank() == 0) {
      const int64_t ended_ns = FlightClock();
      backlog.End();
      while (!is_blocked()) std::this_thread::yield();
      report();
      EXPECT_LE(reports[0].status->blocked_in()->seconds, SecondsSince(ended_ns));
    }
    all.arrive_and_wait();
    const std::string text = ExplainHang(reports, 0).value().text;
    EXPECT_EQ(text.find("rank 1 has it queued behind other work (issued "), 0u) << text;
    EXPECT_NE(text.find(" s ago) while rank 0 waits in all_reduce(f32, sum, count 2) #1 on axis dp"),
              std::string::npos)
        << text;
    EXPECT_FALSE(ExplainHang(reports, 0)->deadlock);
    backlog.End();
    EXPECT_EQ(tensor.ToVector<float>(), (Values{2, 4}));
  });
}

// Longer than the watchdog and the group's own timeout and patience allow an operation to last.
TEST(NcclBacklogTest, ABacklogIsNoHang) {
  std::barrier all(2);
  std::mutex mutex;
  std::vector<std::string> told;
  WatchdogOptions watchdog = {.interval = milliseconds(20),
                              .late_after = milliseconds(60),
                              .tell_after = milliseconds(100),
                              .tell = [&](const std::string& line) {
                                const std::lock_guard<std::mutex> lock(mutex);
                                told.push_back(line);
                              }};
  RunNcclRanks(
      2,
      [&](World& world) {
        const auto group = world.NewGroup("dp", {0, 1});
        group->set_timeout(milliseconds(50));
        const Tensor tensor = Of(world, {1});
        Backlog backlog(tensor);
        const Work work = group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
        group->AllReduce(tensor, tensor, ReduceOp::kSum);
        std::this_thread::sleep_for(FastNcclOptions().patience + milliseconds(500));
        {
          const std::lock_guard<std::mutex> lock(mutex);
          for (const std::string& line : told) EXPECT_EQ(line.find("all_reduce"), std::string::npos) << line;
        }
        EXPECT_FALSE(work.Test()) << "the group has ended";
        all.arrive_and_wait();  // both have looked
        // Not ended in order: on a slow machine that may take longer than the timeout.
        group->Abort("enough");
      },
      std::make_shared<FakeNccl>(), std::chrono::minutes(2), std::move(watchdog));
}

// What a barrier writes to comes from the rank's pool: the memory's last owner may have work on it in the rank's stream.
TEST(NcclBacklogTest, ABarrierWritesToNothingThatIsStillRead) {
  RunNcclRanks(3, [](World& world) {  // two meet behind the rank's stream
    const uint8_t mine = static_cast<uint8_t>(1 + world.rank());
    Tensor source = Tensor::FromValues<uint8_t>({1}, std::vector<uint8_t>{mine}, world.allocator());
    Backlog backlog(source);
    const Tensor clone = CloneTensor(source, world.allocator());
    source = Tensor();  // the next byte that somebody takes
    const auto group = world.NewGroup("dp", {0, 1, 2});
    std::thread device([&] {
      std::this_thread::sleep_for(milliseconds(50));  // the barrier would be over
      backlog.End();
    });
    group->Barrier();
    device.join();
    EXPECT_EQ(clone.ToVector<int>(), std::vector<int>{1 + world.rank()});
  });
}

}  // namespace
}  // namespace weft
