// Between the memory of a rank's device and its second memory, beside it.

#ifndef WEFT_DTENSOR_HOST_MEMORY_H_
#define WEFT_DTENSOR_HOST_MEMORY_H_

#include "dtensor/dtensor.h"
#include "runtime/device/memory_kind.h"

namespace weft {

// The same value, laid out alike, with no history, in the ranks' second memory (World::host_allocator): pinned memory
// of the host beside a GPU, memory in a file beside the CPU's. What is computed of it stays there, by the CPU's kernels.
// A tensor that is there already is given back itself.
//
// Memory: the piece, as `kind`.
// Cost:   a copy of the piece; waits for what makes it.
// Errors: ResourceExhausted; as MakeHostAllocator.
DTensor ToHost(const DTensor& x, MemoryKind kind = MemoryKind::kOther);

// The same value in the memory of the ranks' devices. Where the device is the CPU it computes on the second memory as
// it is: the result shares it.
// Memory: the piece, as `kind`; nothing on a CPU.
// Cost:   a copy of the piece, which the host waits for; nothing on a CPU.
DTensor ToDevice(const DTensor& x, MemoryKind kind = MemoryKind::kOther);

// A value that is kept for later, without history: as ToHost, but that values which share memory share the copy of it,
// which is of all of their memory. Smaller pieces than kLeastOffloadedBytes, and values that may be written in place, are
// given back themselves.
// Memory: of what is copied, as MemoryKind::kSaved.
DTensor SavedOnHost(const DTensor& x);
inline constexpr int64_t kLeastOffloadedBytes = 4096;  // less would be copied longer than it is worth

// Whether the device's kernels read the second memory as it is: a CPU's do.
bool ComputesOnHost(MeshContext& context);

// `x` beside `other`: in the memory that it lies in, by ToHost or ToDevice.
DTensor InMemoryOf(const DTensor& x, MeshContext& other);

}  // namespace weft

#endif  // WEFT_DTENSOR_HOST_MEMORY_H_
