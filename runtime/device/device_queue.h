// Queues of a device's work beside what the rank's own thread gives it to compute: lanes and copies.

#ifndef WEFT_RUNTIME_DEVICE_DEVICE_QUEUE_H_
#define WEFT_RUNTIME_DEVICE_DEVICE_QUEUE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/device/allocator.h"

namespace weft {

// What a queue was given in one QueueScope. Shared by all that wait for it.
//
// Threads: Test and Synchronize any; Join the rank's.
class QueuedBatch {
 public:
  virtual ~QueuedBatch() = default;

  // Whether it has run. Never blocks, never throws: a device that has failed says so to whoever waits.
  virtual bool Test() const noexcept = 0;

  // What the device is given from now on waits for it: in the queue whose scope is open, otherwise in the order of the
  // rank's own work. Does not wait itself. Once the rank's own work waits, the memory that the batch kept is let go of.
  // Errors: those of the device.
  virtual void Join() = 0;

  // Returns when it has run: what it has copied to the host may be read.
  // Errors: those of the device's work.
  virtual void Synchronize() = 0;
};

// What a queue's batches touch, so that it stays until then.
struct QueueKept {
  // The device's memory, and all else: let go of once the rank's own work waits for the batch, since what takes the memory
  // next comes after that wait; or when the batch has run.
  std::shared_ptr<const void> on_device = nullptr;
  // The host's memory: let go of when the batch has run.
  std::shared_ptr<const void> on_host = nullptr;
  // What `on_device` holds of memory that has no other owner soon. When a queue keeps more than kMostKeptBytes of it, the
  // rank's own work waits for the oldest batches, so that the memory may be used again: the host may be far ahead of the
  // device.
  int64_t device_bytes = 0;
};
inline constexpr int64_t kMostKeptBytes = int64_t{64} << 20;

// Work of one rank's device in an order of its own, beside the rank's own work and other queues: a stream of a GPU. What
// one queue is given runs in the order given; between queues nothing is ordered but by what waits.
//
// Memory: what a batch allocates or frees belongs to the rank's own order. So a batch that writes to new memory follows the
// rank (QueueScope), and nothing is allocated or let go of while a scope is open.
// Threads: the rank's.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  // What those that use the queue keep with it; let go of by FinishDeviceQueues. Null at first.
  std::shared_ptr<void>& attached() { return attached_; }

 private:
  friend class QueueScope;

  virtual void Open(bool follows_rank) = 0;
  virtual std::shared_ptr<QueuedBatch> Close(QueueKept kept) = 0;
  virtual void Abandon() noexcept = 0;

  std::shared_ptr<void> attached_;
};

// While it lives, what the rank's thread issues to the device's memory goes to `queue`. One at a time.
class QueueScope {
 public:
  // `follows_rank`: the queue waits for what the rank's own order has been given so far: what the batch reads was computed
  // there, or what it writes to was used there.
  // Errors: those of the device.
  QueueScope(DeviceQueue& queue, bool follows_rank) : queue_(&queue) { queue.Open(follows_rank); }
  // Without End the rank's own work waits for what was issued, whose memory may then go.
  ~QueueScope() {
    if (queue_ != nullptr) queue_->Abandon();
  }
  QueueScope(const QueueScope&) = delete;
  QueueScope& operator=(const QueueScope&) = delete;

  // Closes it: what was issued is a batch. Does not wait.
  // Errors: those of the device.
  std::shared_ptr<QueuedBatch> End(QueueKept kept) {
    std::shared_ptr<QueuedBatch> batch = queue_->Close(std::move(kept));
    queue_ = nullptr;
    return batch;
  }

 private:
  DeviceQueue* queue_;
};

// The queues of a rank: the two that copy, and those of lanes from kLaneQueue on. Waits of the rank's own work for lanes
// count as communication (StreamStalls of a GPU), waits for copies do not.
inline constexpr int kToHostQueue = 0;
inline constexpr int kFromHostQueue = 1;
inline constexpr int kLaneQueue = 2;

// What a kind of device that has queues adds to a program that links it.
struct DeviceQueues {
  // The queue of that number, of the rank that has this allocator; made at its first use.
  DeviceQueue& (*queue)(Allocator& allocator, int number);
  // Waits until all queues are empty and lets go of what they keep.
  void (*finish)(Allocator& allocator) noexcept;
};

// Registers a device's queues, from their own file, during static initialisation. Registering a device twice ends the
// program with a message: it is a defect of the build.
class RegisterDeviceQueues {
 public:
  RegisterDeviceQueues(DeviceType type, const DeviceQueues& queues);
};

// Whether the device of `allocator` has queues. A CPU has none: its lanes are threads (runtime/comm/worker.h), and its
// copies are done when the call returns.
bool HasDeviceQueues(const Allocator& allocator);

// Errors: FailedPrecondition if the device has none; those of the device.
DeviceQueue& DeviceQueueOf(Allocator& allocator, int number);

// Of a rank that is done, whatever its device: waits for its queues, which then keep nothing alive.
void FinishDeviceQueues(Allocator& allocator) noexcept;

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_DEVICE_QUEUE_H_
