#ifndef WEFT_RUNTIME_DEVICE_CUDA_ALLOCATOR_H_
#define WEFT_RUNTIME_DEVICE_CUDA_ALLOCATOR_H_

#include <atomic>
#include <memory>
#include <thread>

#include "runtime/device/cuda/rank_state.h"
#include "runtime/device/cuda/stream.h"
#include "runtime/device/cuda/stream_stalls.h"
#include "runtime/device/pooled_allocator.h"

namespace weft {

class CudaQueue;

// A rank's memory of one GPU, and the stream in whose order the rank's kernels use it. Allocate and
// Deallocate never wait for the device, but where blocks of the pool are given back to it: for its bound (see
// PooledAllocator), or all of them when the device has no more memory.
//
// What is free in the pool, in blocks larger than 1 MiB, leaves 256 MiB of the device to others, or a 64th if that is less: the
// driver loads kernels at their first launch, and NCCL allocates for a group's connections. They would fail where the pool
// could do without.
//
// Threads: as Allocator; the stream's work is issued by the rank's thread.
class CudaAllocator final : public PooledAllocator, public std::enable_shared_from_this<CudaAllocator> {
 public:
  // Makes `device` the calling thread's, for good. `cap_bytes`: most live bytes, 0: no limit but the
  // device's. `fill_freed`: as DeviceOptions says.
  // Errors: as CheckCuda.
  explicit CudaAllocator(int device, int64_t cap_bytes = 0, bool fill_freed = false);
  ~CudaAllocator() override;

  Device device() const override { return {DeviceType::kCuda, device_}; }
  // Where what the calling thread issues now goes: the rank's own stream, or that of the queue whose scope it has open
  // (runtime/device/device_queue.h). A worker that copies for the rank knows nothing of the rank's scopes.
  CudaStreamRef stream() const { return has_scope() ? current_ : stream_.ref(); }
  // In whose order memory is handed out and taken back.
  CudaStreamRef rank_stream() const { return stream_.ref(); }
  CudaQueue* open_queue() const {
    return has_scope() ? open_queue_ : nullptr;
  }  // by the calling thread; null: none
  CudaRankState& rank_state() const { return *rank_state_; }

  // How long the rank's stream has stood still for lanes.
  StreamStalls& queue_stalls() { return queue_stalls_; }

  // For queues and CudaStreamScope: what the calling thread issues goes to `stream` from now on, in the scope of `queue`, or of
  // none (null). The rank's own stream: its scope is closed.
  void SetOpenQueue(CudaQueue* queue, CudaStreamRef stream) {
    open_queue_ = queue;
    current_ = stream;
    const bool is_closed = stream.handle() == stream_.ref().handle();
    scope_thread_ = is_closed ? std::thread::id() : std::this_thread::get_id();
  }

 protected:
  void* TakeFromSystem(int64_t num_bytes) override;
  void ReturnToSystem(void* block, int64_t num_bytes) noexcept override;
  bool SystemHasRoom(int64_t num_bytes) override;
  void Guard(void* block, int64_t num_bytes, int64_t usable_bytes) noexcept override;

 private:
  bool has_scope() const { return scope_thread_.load() == std::this_thread::get_id(); }

  const int device_;
  const bool fill_freed_;
  const CudaStream stream_;
  std::atomic<std::thread::id> scope_thread_ = std::thread::id();  // which has a scope open, if one has
  CudaStreamRef current_ = stream_.ref();                          // its own, as is open_queue_
  CudaQueue* open_queue_ = nullptr;
  StreamStalls queue_stalls_;
  const std::unique_ptr<CudaRankState> rank_state_ = std::make_unique<CudaRankState>();
};

// While it lives, what the calling thread issues on memory of `allocator` goes to `stream`, whatever scope it has open.
// Threads: the rank's.
class CudaStreamScope {
 public:
  CudaStreamScope(CudaAllocator& allocator, CudaStreamRef stream)
      : allocator_(allocator), queue_(allocator.open_queue()), before_(allocator.stream()) {
    allocator_.SetOpenQueue(queue_, stream);
  }
  ~CudaStreamScope() { allocator_.SetOpenQueue(queue_, before_); }
  CudaStreamScope(const CudaStreamScope&) = delete;
  CudaStreamScope& operator=(const CudaStreamScope&) = delete;

 private:
  CudaAllocator& allocator_;
  CudaQueue* const queue_;
  const CudaStreamRef before_;
};

// Pooled host memory that a GPU reads and writes directly: an ordinary CPU tensor lies in it, and copies to
// and from it need no staging by the driver. `fill_freed`: as DeviceOptions says.
std::shared_ptr<Allocator> MakePinnedAllocator(bool fill_freed = false);

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_CUDA_ALLOCATOR_H_
