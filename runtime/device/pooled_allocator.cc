#include "runtime/device/pooled_allocator.h"

#include <algorithm>
#include <bit>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// More than any machine's address space: refused here, since sanitizers end the program on such requests.
constexpr int64_t kMaxBytes = int64_t{1} << 48;

}  // namespace

constexpr PooledAllocator::SizeClass PooledAllocator::ClassAt(int index) {
  const int doubling = index / kClassesPerDoubling;
  const int64_t step = index % kClassesPerDoubling + 1;
  if (doubling == 0) return {index, step * kAllocationGranule};
  return {index, (kClassesPerDoubling + step) * (kAllocationGranule << (doubling - 1))};
}

// The smallest class that holds `num_bytes`.
constexpr PooledAllocator::SizeClass PooledAllocator::ClassOf(int64_t num_bytes) {
  const int64_t granules = std::max<int64_t>(RoundUpToGranule(num_bytes) / kAllocationGranule, 1);
  if (granules <= kClassesPerDoubling) return ClassAt(static_cast<int>(granules) - 1);
  // In (8, 16] steps of 2^shift granules.
  const int shift = std::bit_width(static_cast<uint64_t>(granules - 1)) - 4;
  const int64_t steps = ((granules - 1) >> shift) + 1;
  return ClassAt(static_cast<int>(kClassesPerDoubling * shift + steps - 1));
}

constexpr bool PooledAllocator::ClassesFit() {
  return ClassOf(0).index == 0 && ClassOf(512).index == 7 && ClassOf(513).index == 8 &&
         ClassOf(513).num_bytes == 576 && ClassOf(1024).index == 15 && ClassOf(1025).index == 16 &&
         ClassOf(1025).num_bytes == 1152 && ClassOf(kMaxBytes).index < kNumClasses;
}

void* PooledAllocator::Allocate(int64_t num_bytes) {
  static_assert(ClassesFit());
  WEFT_REQUIRE(num_bytes >= 0, "Allocate: expected at least 0 bytes, got ", num_bytes);
  if (num_bytes > kMaxBytes) ThrowExhausted(num_bytes, /*is_capped=*/false);
  const SizeClass size_class = ClassOf(num_bytes);
  void* block = TakeFromPool(size_class, num_bytes);
  if (block == nullptr) block = TakeNew(size_class, num_bytes);
  Guard(block, size_class.num_bytes, num_bytes);
  return block;
}

void PooledAllocator::Deallocate(void* data, int64_t num_bytes) noexcept {
  if (data == nullptr) return;
  const SizeClass size_class = ClassOf(num_bytes);
  Guard(data, size_class.num_bytes, 0);
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_.live_bytes -= RoundUpToGranule(num_bytes);
  try {
    free_blocks_[size_class.index].push_back(data);
    stats_.pooled_bytes += size_class.num_bytes;
  } catch (const std::bad_alloc&) {
    ReturnToSystem(data, size_class.num_bytes);
  }
}

AllocatorStats PooledAllocator::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

void PooledAllocator::ResetPeak() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_.peak_bytes = stats_.live_bytes;
}

// Null if no block of the class is free. Also where the cap is looked at.
void* PooledAllocator::TakeFromPool(const SizeClass& size_class, int64_t num_bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (cap_bytes_ - stats_.live_bytes >= RoundUpToGranule(num_bytes)) {
      std::vector<void*>& blocks = free_blocks_[size_class.index];
      if (blocks.empty()) return nullptr;
      void* const block = blocks.back();
      blocks.pop_back();
      stats_.pooled_bytes -= size_class.num_bytes;
      Count(num_bytes);
      return block;
    }
  }
  ThrowExhausted(num_bytes, /*is_capped=*/true);
}

void* PooledAllocator::TakeNew(const SizeClass& size_class, int64_t num_bytes) {
  void* block = TakeFromSystem(size_class.num_bytes);
  if (block == nullptr) {
    // What the pool keeps in other classes may be what is missing.
    ReturnPoolToSystem();
    block = TakeFromSystem(size_class.num_bytes);
  }
  if (block == nullptr) ThrowExhausted(num_bytes, /*is_capped=*/false);
  const std::lock_guard<std::mutex> lock(mutex_);
  Count(num_bytes);
  return block;
}

void PooledAllocator::Count(int64_t num_bytes) {
  stats_.live_bytes += RoundUpToGranule(num_bytes);
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
  ++stats_.num_allocations;
}

void PooledAllocator::ReturnPoolToSystem() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int index = 0; index < kNumClasses; ++index) {
    for (void* block : free_blocks_[index]) ReturnToSystem(block, ClassAt(index).num_bytes);
    free_blocks_[index].clear();
  }
  stats_.pooled_bytes = 0;
}

void PooledAllocator::ThrowExhausted(int64_t num_bytes, bool is_capped) const {
  const AllocatorStats now = stats();
  Throw(absl::StatusCode::kResourceExhausted, "out of memory on ", DeviceTypeName(device().type),
        ": cannot allocate ", num_bytes, " bytes; live ", now.live_bytes, " bytes, peak ", now.peak_bytes,
        " bytes, pooled ", now.pooled_bytes, " bytes",
        is_capped ? absl::StrCat(", cap ", cap_bytes_, " bytes") : "");
}

}  // namespace weft
