#ifndef WEFT_RUNTIME_DEVICE_MEMORY_KIND_H_
#define WEFT_RUNTIME_DEVICE_MEMORY_KIND_H_

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace weft {

// What memory is for, as said by who allocates it. Fixed at allocation: memory that changes hands keeps its kind.
enum class MemoryKind : uint8_t {
  kOther,       // whatever nothing below claims: inputs, metrics, what an update needs for a while
  kParam,       // parameters, as they rest
  kWholeParam,  // the copies of parameters that compute reads: gathered, cast; and what they are packed in
  kGrad,        // what backward makes: after it, the gradients at rest
  kBucket,      // what gradients are packed in on their way
  kState,       // an optimizer's
  kSaved,  // what a forward makes that gradients will be asked of: after it, what backward reads, and results
};

inline constexpr MemoryKind kMemoryKinds[] = {
    MemoryKind::kOther,  MemoryKind::kParam, MemoryKind::kWholeParam, MemoryKind::kGrad,
    MemoryKind::kBucket, MemoryKind::kState, MemoryKind::kSaved,
};
inline constexpr int kNumMemoryKinds = 7;

// "other", "param", "whole_param", "grad", "bucket", "state", "saved".
absl::string_view MemoryKindName(MemoryKind kind);

// Bytes as callers asked for them, rounded up to kAllocationGranule. Of an allocator the kinds' live bytes add up to
// AllocatorStats::live_bytes; their peaks need not come at one time.
struct KindBytes {
  int64_t live = 0;  // handed out and not yet returned
  int64_t peak = 0;  // largest `live` since the last ResetPeak

  bool operator==(const KindBytes&) const = default;
};

// By kind.
class MemoryByKind {
 public:
  const KindBytes& operator[](MemoryKind kind) const { return bytes_[static_cast<int>(kind)]; }
  KindBytes& operator[](MemoryKind kind) { return bytes_[static_cast<int>(kind)]; }

  // What allocators count with. The bytes are rounded up already.
  void Add(MemoryKind kind, int64_t num_bytes) {
    KindBytes& bytes = (*this)[kind];
    bytes.live += num_bytes;
    if (bytes.live > bytes.peak) bytes.peak = bytes.live;
  }
  void Remove(MemoryKind kind, int64_t num_bytes) { (*this)[kind].live -= num_bytes; }
  void ResetPeak() {
    for (KindBytes& bytes : bytes_) bytes.peak = bytes.live;
  }

  bool operator==(const MemoryByKind&) const = default;

 private:
  std::array<KindBytes, kNumMemoryKinds> bytes_ = {};
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_MEMORY_KIND_H_
