// What the ledger, the flight recorder and the watchdog make of operations of the `nccl` backend that their
// stream has not come to, because of what was issued before.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/comm/flight_recorder.h"
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

}  // namespace
}  // namespace weft
