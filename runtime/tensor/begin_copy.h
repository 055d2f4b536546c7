// Copies between the host and a device beside what the device computes.

#ifndef WEFT_RUNTIME_TENSOR_BEGIN_COPY_H_
#define WEFT_RUNTIME_TENSOR_BEGIN_COPY_H_

#include <functional>
#include <memory>

#include "runtime/device/device_queue.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// What a copy comes after.
struct CopyAfter {
  // What the rank's own order has been given so far (QueueScope): unless nothing of it touches the device's memory.
  bool rank = true;
  // Called when the copy's queue is open, to join other batches (QueuedBatch::Join); may be null.
  std::function<void()> join = nullptr;
};

// Begins to copy the elements of `from` to `to`, one of which lies on a device that has queues (HasDeviceQueues) and the
// other in the host's memory beside it (MakeHostAllocator); row-major, of one dtype and shape. Copies to the host run in a
// queue of their own, one behind the other, and those to the device in another. Does not wait. The batch keeps both tensors.
// Elements on the device are there once the batch is joined; on the host, once it has run.
//
// Memory: of copies to the host the rank's own order waits for the oldest that have not run, when more than kMostKeptBytes
//         of the device's memory would be kept for them.
// Errors: InvalidArgument for tensors of other devices, that differ in type, or are not row-major; those of the device.
// Threads: the rank's.
std::shared_ptr<QueuedBatch> BeginCopy(const Tensor& from, const Tensor& to, const CopyAfter& after = {});

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_BEGIN_COPY_H_
