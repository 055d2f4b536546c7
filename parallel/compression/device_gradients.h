// Gradients of a rank on a GPU: on their way to the host's memory, where methods run, and sums on their way back.

#ifndef WEFT_PARALLEL_COMPRESSION_DEVICE_GRADIENTS_H_
#define WEFT_PARALLEL_COMPRESSION_DEVICE_GRADIENTS_H_

#include <memory>
#include <utility>
#include <vector>

#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"
#include "dtensor/redistribution/pending_moves.h"
#include "parallel/compression/compressor.h"
#include "runtime/comm/work.h"
#include "runtime/device/device_queue.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Copies run in the device's queues of copies (BeginCopy), beside what it computes. A lane's worker waits for those to the
// host; those to the device are begun by the rank's thread, when it next asks and the sums are there.
//
// Threads: the rank's.
class DeviceGradients {
 public:
  // Of a context whose device has queues (HasDeviceQueues).
  explicit DeviceGradients(MeshContext& device) : device_(device) {}

  // Memory of the device for a sum that is brought back later. To be made before the gradients that are summed are sent
  // (Send): whoever had the memory before is done with it once these have arrived.
  Tensor NewPlace(DType dtype, const Shape& shape) const;

  // Begins to copy the gradient's piece, behind what makes it, to `to`, row-major in the host's memory and of its type. What
  // `bucket` runs from now on comes behind that.
  // Errors: of the bucket's work: those of the device; what World::ThrowIfCutOff throws, since the elements may come of a
  //         collective that was cut off.
  void Send(const DTensor& gradient, const Tensor& to, GradientBucket& bucket);

  // What has been sent since the last BringBack: until this is settled, or has run, the device keeps the gradients' memory.
  // Null, if nothing has.
  IntrusivePtr<PendingMoves> Sent() const;

  // The sums, which lie on the host and may be pending, in `places` of their types: pending where they were.
  std::vector<DTensor> BringBack(const std::vector<DTensor>& sums, const std::vector<Tensor>& places);

  // Begins to copy what has become ready. Never waits.
  void BeginReady();

 private:
  using Batches = std::vector<std::shared_ptr<QueuedBatch>>;
  struct Copies;

  IntrusivePtr<PendingMoves> Follow(const PendingMoves& sums, const std::shared_ptr<Copies>& copies);

  MeshContext& device_;
  Batches sent_;             // since the last BringBack
  std::vector<Work> begun_;  // each begins copies; those that are not known to have begun
};

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_DEVICE_GRADIENTS_H_
