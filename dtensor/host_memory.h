// Between the memory of a rank's device and its second memory, beside it.

#ifndef WEFT_DTENSOR_HOST_MEMORY_H_
#define WEFT_DTENSOR_HOST_MEMORY_H_

#include <vector>

#include "dtensor/dtensor.h"
#include "runtime/comm/work.h"
#include "runtime/device/memory_kind.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// The same value, laid out alike, with no history, in the ranks' second memory (World::host_allocator): pinned memory
// of the host beside a GPU, memory in a file beside the CPU's. What is computed of it stays there, by the CPU's kernels.
// A tensor that is there already is given back itself.
//
// Memory: the piece, as `kind`.
// Cost:   a copy of the piece. On a GPU in a stream of its own, behind what makes the value: the result is pending, and
//         the host waits where it is read; of a value that is written in place (a parameter's), what the rank's stream is
//         given from now on waits for the copy. On a CPU the call waits for what makes it.
// Errors: ResourceExhausted; as MakeHostAllocator.
DTensor ToHost(const DTensor& x, MemoryKind kind = MemoryKind::kOther);

// The same value in the memory of the ranks' devices. Where the device is the CPU it computes on the second memory as
// it is: the result shares it.
// Memory: the piece, as `kind`; nothing on a CPU.
// Cost:   a copy of the piece in a stream of its own: the result is pending, and the rank's stream waits where it is read.
//         Until it has been copied, `x` is pending for whoever would write to it. Nothing on a CPU.
DTensor ToDevice(const DTensor& x, MemoryKind kind = MemoryKind::kOther);

// The elements of `from` go to the memory of `to`, which has its type and layout and may lie in the other memory.
// Cost:   a copy of the piece. From the second memory to a GPU in a stream of its own: `to` is pending, and until then so is
//         `from` for whoever would write to it.
void CopyInto(const DTensor& from, const DTensor& to);

// A piece on a GPU that is to be copied beside the rank's stream.
struct PieceToCopy {
  Tensor from;                    // row-major
  std::vector<Work> before = {};  // what makes it

  // For CopyAfter::join: the copy waits for `before`.
  void Join() const {
    for (const Work& work : before) work.WaitOnWorker();
  }
};

// That of `x`. What a worker makes, and what has to be made row-major, the rank waits for: `before` is empty then.
PieceToCopy PieceToCopyOf(const DTensor& x);

// Whether the device's kernels read the second memory as it is: a CPU's do.
bool ComputesOnHost(MeshContext& context);

// `x` beside `other`: in the memory that it lies in, by ToHost or ToDevice.
DTensor InMemoryOf(const DTensor& x, MeshContext& other);

}  // namespace weft

#endif  // WEFT_DTENSOR_HOST_MEMORY_H_
