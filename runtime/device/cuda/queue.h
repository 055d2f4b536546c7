#ifndef WEFT_RUNTIME_DEVICE_CUDA_QUEUE_H_
#define WEFT_RUNTIME_DEVICE_CUDA_QUEUE_H_

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/device/cuda/allocator.h"
#include "runtime/device/cuda/stream.h"
#include "runtime/device/device_queue.h"

namespace weft {

class CudaQueue;

// A batch is a place in its queue's stream.
//
// Lifetime: keeps the allocator, whose queues keep the batches that have not run: until these have, or Finish.
class CudaBatch final : public QueuedBatch, public std::enable_shared_from_this<CudaBatch> {
 public:
  // `before`: of other queues, which this one has waited for.
  CudaBatch(CudaQueue& queue, std::shared_ptr<Allocator> allocator, std::shared_ptr<CudaEvent> done,
            std::vector<std::shared_ptr<CudaBatch>> before, QueueKept kept)
      : queue_(queue),
        allocator_(std::move(allocator)),
        done_(std::move(done)),
        before_(std::move(before)),
        kept_(std::move(kept)) {}

  bool Test() const noexcept override;
  void Join() override;
  void Synchronize() override;

 private:
  friend class CudaQueue;

  int64_t kept_bytes();
  // What it keeps no more: of the device because the rank's stream waits for it, or all since it has run.
  std::shared_ptr<const void> LetGoOnDevice();
  QueueKept LetGo();

  CudaQueue& queue_;
  const std::shared_ptr<Allocator> allocator_;
  std::shared_ptr<CudaEvent> done_;
  std::vector<std::shared_ptr<CudaBatch>> before_;  // until the rank's stream waits for this one
  std::mutex kept_mutex_;
  QueueKept kept_;
  bool is_joined_ = false;  // the rank's stream waits for it
};

// A queue is a stream: what is issued while its scope is open goes there, since the allocator says so
// (CudaAllocator::stream).
class CudaQueue final : public DeviceQueue {
 public:
  // `counts_stalls`: it is a lane's: how long the rank's stream stands still for it goes to the allocator's stalls, and its
  // kernels go before the rank's, which would have them wait for a whole product.
  CudaQueue(CudaAllocator& allocator, bool counts_stalls)
      : allocator_(allocator),
        counts_stalls_(counts_stalls),
        stream_(counts_stalls ? CudaStream::Priority::kGreatest : CudaStream::Priority::kDefault) {}

  CudaStreamRef stream() const { return stream_.ref(); }

  // While its scope is open: what it is given from now on waits for what the rank's stream has been given.
  void FollowRank();
  // While its scope is open: goes with what the batch keeps on the device.
  void Keep(std::shared_ptr<const void> memory) { kept_while_open_.push_back(std::move(memory)); }

  // Waits for all of it and lets go of what is kept.
  void Finish() noexcept;

 private:
  friend class CudaBatch;

  void Open(bool follows_rank) override;
  std::shared_ptr<QueuedBatch> Close(QueueKept kept) override;
  void Abandon() noexcept override;

  std::shared_ptr<CudaEvent> TakeEvent();
  void LetGoOfDone();
  void JoinOldest();
  // The rank's stream waits for `batch`, hence for those before it and what they have waited for.
  void MarkJoined(const std::shared_ptr<CudaBatch>& batch, std::vector<std::shared_ptr<const void>>* let_go);

  CudaAllocator& allocator_;  // whose it is
  const bool counts_stalls_;
  const CudaStream stream_;
  CudaEvent issued_;                                // of the rank's stream
  std::deque<std::shared_ptr<CudaBatch>> batches_;  // not known to have run
  std::vector<std::shared_ptr<CudaEvent>> free_events_;
  std::vector<std::shared_ptr<CudaBatch>> waited_for_;  // while its scope is open
  std::vector<std::shared_ptr<const void>> kept_while_open_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_CUDA_QUEUE_H_
