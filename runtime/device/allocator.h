#ifndef WEFT_RUNTIME_DEVICE_ALLOCATOR_H_
#define WEFT_RUNTIME_DEVICE_ALLOCATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/device/device.h"
#include "runtime/device/memory_kind.h"

namespace weft {

// What every request is rounded up to, on every device: so bytes counted on meta are bytes used on the CPU.
inline constexpr int64_t kAllocationGranule = 64;
constexpr int64_t RoundUpToGranule(int64_t num_bytes) {
  return (num_bytes + kAllocationGranule - 1) / kAllocationGranule * kAllocationGranule;
}

// Bytes as callers asked for them, rounded up to the granule; the pool's bytes as they are, rounded up
// further.
struct AllocatorStats {
  int64_t live_bytes = 0;       // handed out and not yet returned
  int64_t peak_bytes = 0;       // largest live_bytes since the last ResetPeak
  int64_t pooled_bytes = 0;     // kept for reuse
  int64_t num_allocations = 0;  // calls of Allocate that succeeded

  bool operator==(const AllocatorStats&) const = default;
};

// Hands out memory of one device. Shared: every Buffer keeps its allocator alive.
//
// Memory has a kind, which is ambient: kind(), as MemoryKindGuard sets it, is what buffers are allocated as.
//
// Threads: Allocate, stats, ResetPeak and the kind are for the owning rank's thread; Deallocate may come from any
//          thread (a peer's collective may drop the last reference).
class Allocator {
 public:
  virtual ~Allocator() = default;

  virtual Device device() const = 0;

  // Returns `num_bytes` >= 0 bytes aligned to 64, uninitialised; null on meta alone.
  // Errors: ResourceExhausted that names the request, the live and peak bytes; InvalidArgument below 0.
  void* Allocate(int64_t num_bytes, MemoryKind kind = MemoryKind::kOther) {
    return DoAllocate(num_bytes, kind);
  }

  // Takes back what Allocate returned, with the same `num_bytes` and kind. Never throws.
  void Deallocate(void* data, int64_t num_bytes, MemoryKind kind = MemoryKind::kOther) noexcept {
    DoDeallocate(data, num_bytes, kind);
  }

  virtual AllocatorStats stats() const = 0;
  virtual MemoryByKind by_kind() const = 0;
  virtual void ResetPeak() = 0;

  MemoryKind kind() const { return kind_; }

 private:
  friend class MemoryKindGuard;

  virtual void* DoAllocate(int64_t num_bytes, MemoryKind kind) = 0;
  virtual void DoDeallocate(void* data, int64_t num_bytes, MemoryKind kind) noexcept = 0;

  MemoryKind kind_ = MemoryKind::kOther;
};

// Buffers of `allocator`, which outlives the guard, are of `kind` while it lives. Guards nest.
class MemoryKindGuard {
 public:
  MemoryKindGuard(Allocator& allocator, MemoryKind kind)
      : allocator_(allocator), before_(std::exchange(allocator.kind_, kind)) {}
  ~MemoryKindGuard() { allocator_.kind_ = before_; }
  MemoryKindGuard(const MemoryKindGuard&) = delete;
  MemoryKindGuard& operator=(const MemoryKindGuard&) = delete;

 private:
  Allocator& allocator_;
  const MemoryKind before_;
};

// A pooled CPU allocator: see PooledAllocator. `cap_bytes`: most live bytes, 0 is no limit. `fill_freed`: as
// DeviceOptions says.
std::shared_ptr<Allocator> MakeCpuAllocator(int64_t cap_bytes = 0, bool fill_freed = false);

// A pooled allocator of memory that the CPU's kernels use as any other, but whose pages the system writes to a file and
// drops when it needs room: for what is larger than memory. `folder`: where the file is, which has no name and is gone
// with the allocator; "": TMPDIR's, or /tmp, which wins nothing where it is a file system in memory. Blocks do not
// count as the process's data (RLIMIT_DATA). `fill_freed`: as DeviceOptions says.
// Cost:   the disk's, for what does not fit in memory.
// Errors: FailedPrecondition that names the folder, if there can be no file; a disk that is full is
//         ResourceExhausted, of Allocate.
std::shared_ptr<Allocator> MakeFileAllocator(const std::string& folder = "", int64_t cap_bytes = 0,
                                             bool fill_freed = false);

// The same interface for meta tensors: counts bytes, holds none.
std::shared_ptr<Allocator> MakeMetaAllocator();

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_ALLOCATOR_H_
