// What tests tell the fake, and ask it.

#include <mutex>
#include <string>

#include "tests/runtime/comm/nccl/fake_api.h"

namespace weft {

void FakeNccl::FailNext(const std::string& call, int rank, NcclResult result) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failures_[{call, rank}] = result;
}

void FakeNccl::SetAsyncError(int rank, NcclResult result) {
  const std::lock_guard<std::mutex> lock(mutex_);
  async_errors_[rank] = result;
}

void FakeNccl::HoldConnecting(int rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  held_.insert(rank);
}

void FakeNccl::set_aborts_are_heard(bool heard) {
  const std::lock_guard<std::mutex> lock(mutex_);
  aborts_are_heard_ = heard;
}

int64_t FakeNccl::NumLive() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(comms_.size());
}

int64_t FakeNccl::NumAborted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_aborted_;
}

void FakeNccl::HoldAborts(bool hold) {
  const std::lock_guard<std::mutex> lock(mutex_);
  aborts_are_held_ = hold;
  let_go_.notify_all();
}

int64_t FakeNccl::NumHeldAborts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_held_aborts_;
}

}  // namespace weft
