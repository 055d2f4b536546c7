#include "runtime/device/cuda/queue.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/base/error.h"

namespace weft {
namespace {

// A rank's.
struct CudaQueues {
  std::map<int, std::unique_ptr<CudaQueue>> by_number;
};

CudaAllocator& CudaAllocatorOf(Allocator& allocator) { return static_cast<CudaAllocator&>(allocator); }

DeviceQueue& QueueOf(Allocator& allocator, int number) {
  CudaAllocator& cuda = CudaAllocatorOf(allocator);
  auto& by_number = cuda.rank_state().Get<CudaQueues>().by_number;
  const auto known = by_number.find(number);
  if (known != by_number.end()) return *known->second;
  auto queue = std::make_unique<CudaQueue>(cuda, /*counts_stalls=*/number >= kLaneQueue);
  return *by_number.emplace(number, std::move(queue)).first->second;
}

void Finish(Allocator& allocator) noexcept {
  for (auto& [number, queue] : CudaAllocatorOf(allocator).rank_state().Get<CudaQueues>().by_number) {
    queue->Finish();
  }
}

const RegisterDeviceQueues kRegister(DeviceType::kCuda, {&QueueOf, &Finish});

}  // namespace

bool CudaBatch::Test() const noexcept {
  try {
    return done_->Test();
  } catch (const Error&) {
    return false;
  }
}

int64_t CudaBatch::kept_bytes() {
  const std::lock_guard<std::mutex> lock(kept_mutex_);
  return kept_.device_bytes;
}

std::shared_ptr<const void> CudaBatch::LetGoOnDevice() {
  const std::lock_guard<std::mutex> lock(kept_mutex_);
  kept_.device_bytes = 0;
  return std::exchange(kept_.on_device, nullptr);
}

QueueKept CudaBatch::LetGo() {
  const std::lock_guard<std::mutex> lock(kept_mutex_);
  return std::exchange(kept_, {});
}

// On workers, too, which have no device of their own.
void CudaBatch::Synchronize() {
  const CudaDeviceGuard guard(allocator_->device().index);
  done_->Synchronize();
  LetGo();
}

void CudaBatch::Join() {
  CudaAllocator& allocator = CudaAllocatorOf(*allocator_);
  if (CudaQueue* const open = allocator.open_queue(); open != nullptr) {
    if (open == &queue_) return;
    open->stream().WaitFor(*done_);
    open->waited_for_.push_back(shared_from_this());
    return;
  }
  if (is_joined_) {
    done_->Test();  // for its errors
    return;
  }
  // A copy that waits for a lane: what that costs the rank is the lane's.
  for (const std::shared_ptr<CudaBatch>& other : std::vector(before_)) {
    if (!queue_.counts_stalls_ && other->queue_.counts_stalls_) other->Join();
  }
  if (queue_.counts_stalls_) {
    allocator.queue_stalls().Wait(allocator.rank_stream(), done_);
  } else {
    allocator.rank_stream().WaitFor(*done_);
  }
  std::vector<std::shared_ptr<const void>> let_go;  // when nothing is looked at any more
  queue_.MarkJoined(shared_from_this(), &let_go);
}

void CudaQueue::Open(bool follows_rank) {
  WEFT_CHECK(allocator_.open_queue() == nullptr, "two scopes of queues are open");
  LetGoOfDone();
  if (follows_rank) FollowRank();
  allocator_.SetOpenQueue(this, stream());
}

void CudaQueue::FollowRank() {
  issued_.Record(allocator_.rank_stream());
  stream().WaitFor(issued_);
}

std::shared_ptr<QueuedBatch> CudaQueue::Close(QueueKept kept) {
  const std::shared_ptr<CudaEvent> done = TakeEvent();
  done->Record(stream());
  if (!kept_while_open_.empty()) {
    kept_while_open_.push_back(std::move(kept.on_device));
    kept.on_device =
        std::make_shared<const std::vector<std::shared_ptr<const void>>>(std::move(kept_while_open_));
    kept_while_open_.clear();
  }
  auto batch = std::make_shared<CudaBatch>(*this, allocator_.shared_from_this(), done,
                                           std::exchange(waited_for_, {}), std::move(kept));
  batches_.push_back(batch);
  allocator_.SetOpenQueue(nullptr, allocator_.rank_stream());
  JoinOldest();
  return batch;
}

void CudaQueue::JoinOldest() {
  int64_t kept_bytes = 0;
  for (auto batch = batches_.rbegin(); batch != batches_.rend(); ++batch) {
    kept_bytes += (*batch)->kept_bytes();
    if (kept_bytes <= kMostKeptBytes || batch == batches_.rbegin()) continue;
    const std::shared_ptr<CudaBatch> oldest = *batch;  // and with it those before
    oldest->Join();
    return;
  }
}

// What was issued uses memory that goes now.
void CudaQueue::Abandon() noexcept {
  try {
    issued_.Record(stream());
    allocator_.rank_stream().WaitFor(issued_);
  } catch (const Error&) {
    // The device has failed, which the next call says.
  }
  allocator_.SetOpenQueue(nullptr, allocator_.rank_stream());
  waited_for_.clear();
  kept_while_open_.clear();
}

std::shared_ptr<CudaEvent> CudaQueue::TakeEvent() {
  if (free_events_.empty()) {
    return std::make_shared<CudaEvent>(counts_stalls_ ? CudaEvent::Timing::kOn : CudaEvent::Timing::kOff);
  }
  std::shared_ptr<CudaEvent> event = std::move(free_events_.back());
  free_events_.pop_back();
  return event;
}

void CudaQueue::LetGoOfDone() {
  if (counts_stalls_) allocator_.queue_stalls().AddUpEnded();
  while (!batches_.empty() && batches_.front()->Test()) {
    const std::shared_ptr<CudaBatch> batch = std::move(batches_.front());
    batches_.pop_front();
    batch->LetGo();
    batch->before_.clear();
    const bool is_last = batch.use_count() == 1 && batch->done_.use_count() == 1;
    if (is_last) free_events_.push_back(std::move(batch->done_));
  }
}

void CudaQueue::MarkJoined(const std::shared_ptr<CudaBatch>& batch,
                           std::vector<std::shared_ptr<const void>>* let_go) {
  const auto mark = [&](CudaBatch& joined) {
    if (std::exchange(joined.is_joined_, true)) return;
    let_go->push_back(joined.LetGoOnDevice());
    for (const auto& before : std::exchange(joined.before_, {})) before->queue_.MarkJoined(before, let_go);
  };
  const auto place = std::find(batches_.begin(), batches_.end(), batch);
  if (place != batches_.end()) {
    for (auto earlier = batches_.begin(); earlier != place; ++earlier) mark(**earlier);
  }
  mark(*batch);
}

void CudaQueue::Finish() noexcept {
  try {
    stream().Synchronize();
  } catch (const Error&) {
    // The device has failed: nothing runs any more.
  }
  attached() = nullptr;
  for (const std::shared_ptr<CudaBatch>& batch : std::exchange(batches_, {})) {
    batch->LetGo();
    batch->before_.clear();
  }
}

}  // namespace weft
