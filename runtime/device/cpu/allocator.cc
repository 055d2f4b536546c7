#include "runtime/device/allocator.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>
#include <new>
#include <vector>

#include "runtime/base/error.h"

namespace weft {
namespace {

// Blocks are as large as their size class: multiples of 64 up to 512, from there 8 classes a doubling, so
// that at most an eighth is wasted and the pool serves requests that vary a little (uneven shards, last
// batches).
constexpr int kClassesPerDoubling = 8;
constexpr int64_t kLinearLimit = kAllocationGranule * kClassesPerDoubling;
constexpr int kNumClasses = kClassesPerDoubling * 48;

// More than any machine's address space: refused here, since sanitizers end the program on such requests.
constexpr int64_t kMaxBytes = int64_t{1} << 48;

// From here on blocks are aligned to huge pages and ask for them: fewer faults and TLB misses.
constexpr int64_t kHugePage = int64_t{2} << 20;

struct SizeClass {
  int index;
  int64_t num_bytes;
};

constexpr SizeClass ClassAt(int index) {
  const int doubling = index / kClassesPerDoubling;
  const int64_t step = index % kClassesPerDoubling + 1;
  if (doubling == 0) return {index, step * kAllocationGranule};
  return {index, (kClassesPerDoubling + step) * (kAllocationGranule << (doubling - 1))};
}

// The smallest class that holds `num_bytes`.
constexpr SizeClass ClassOf(int64_t num_bytes) {
  const int64_t granules = std::max<int64_t>(RoundUpToGranule(num_bytes) / kAllocationGranule, 1);
  if (granules <= kClassesPerDoubling) return ClassAt(static_cast<int>(granules) - 1);
  // In (8, 16] steps of 2^shift granules.
  const int shift = std::bit_width(static_cast<uint64_t>(granules - 1)) - 4;
  const int64_t steps = ((granules - 1) >> shift) + 1;
  return ClassAt(static_cast<int>(kClassesPerDoubling * shift + steps - 1));
}
static_assert(ClassOf(0).index == 0 && ClassOf(512).index == 7);
static_assert(ClassOf(513).index == 8 && ClassOf(513).num_bytes == 576);
static_assert(ClassOf(1024).index == 15 && ClassOf(1025).index == 16 && ClassOf(1025).num_bytes == 1152);
static_assert(ClassOf(kMaxBytes).index < kNumClasses);

std::align_val_t AlignmentOf(const SizeClass& size_class) {
  return static_cast<std::align_val_t>(size_class.num_bytes >= kHugePage ? kHugePage : kAllocationGranule);
}

// Null if the system has no more.
void* TakeFromSystem(const SizeClass& size_class) {
  void* const block = ::operator new(size_class.num_bytes, AlignmentOf(size_class), std::nothrow);
  if (block != nullptr && size_class.num_bytes >= kHugePage) {
    madvise(block, size_class.num_bytes, MADV_HUGEPAGE);  // a hint: a kernel without huge pages refuses it
  }
  return block;
}

void ReturnToSystem(void* block, const SizeClass& size_class) {
  ASAN_UNPOISON_MEMORY_REGION(block, size_class.num_bytes);
  ::operator delete(block, AlignmentOf(size_class));
}

// One lock guards all: uncontended it costs less than telling the owner's thread from others would save, and
// a block that a peer's thread returns is at once there for reuse. The free lists are kept outside the
// blocks, so that AddressSanitizer sees a freed block, and the tail of a live one, as poisoned.
class CpuAllocator final : public Allocator {
 public:
  ~CpuAllocator() override {
    for (std::vector<void*>& blocks : free_blocks_) Drain(blocks);
  }

  Device device() const override { return {DeviceType::kCpu}; }

  void* Allocate(int64_t num_bytes) override {
    WEFT_REQUIRE(num_bytes >= 0, "Allocate: expected at least 0 bytes, got ", num_bytes);
    if (num_bytes > kMaxBytes) ThrowExhausted(num_bytes);
    const SizeClass size_class = ClassOf(num_bytes);
    void* block = TakeFromPool(size_class, num_bytes);
    if (block == nullptr) block = TakeNew(size_class, num_bytes);
    ASAN_POISON_MEMORY_REGION(block, size_class.num_bytes);
    ASAN_UNPOISON_MEMORY_REGION(block, num_bytes);
    return block;
  }

  void Deallocate(void* data, int64_t num_bytes) noexcept override {
    if (data == nullptr) return;
    const SizeClass size_class = ClassOf(num_bytes);
    ASAN_POISON_MEMORY_REGION(data, size_class.num_bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.live_bytes -= RoundUpToGranule(num_bytes);
    try {
      free_blocks_[size_class.index].push_back(data);
      stats_.pooled_bytes += size_class.num_bytes;
    } catch (const std::bad_alloc&) {
      ReturnToSystem(data, size_class);
    }
  }

  AllocatorStats stats() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

  void ResetPeak() override {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.peak_bytes = stats_.live_bytes;
  }

 private:
  // Null if no block of the class is free.
  void* TakeFromPool(const SizeClass& size_class, int64_t num_bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<void*>& blocks = free_blocks_[size_class.index];
    if (blocks.empty()) return nullptr;
    void* const block = blocks.back();
    blocks.pop_back();
    stats_.pooled_bytes -= size_class.num_bytes;
    Count(num_bytes);
    return block;
  }

  void* TakeNew(const SizeClass& size_class, int64_t num_bytes) {
    void* block = TakeFromSystem(size_class);
    if (block == nullptr) {
      // What the pool keeps in other classes may be what is missing.
      ReturnPoolToSystem();
      block = TakeFromSystem(size_class);
    }
    if (block == nullptr) ThrowExhausted(num_bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    Count(num_bytes);
    return block;
  }

  void Count(int64_t num_bytes) {
    stats_.live_bytes += RoundUpToGranule(num_bytes);
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
    ++stats_.num_allocations;
  }

  void ReturnPoolToSystem() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (std::vector<void*>& blocks : free_blocks_) Drain(blocks);
    stats_.pooled_bytes = 0;
  }

  void Drain(std::vector<void*>& blocks) {
    const int index = static_cast<int>(&blocks - free_blocks_.data());
    for (void* block : blocks) ReturnToSystem(block, ClassAt(index));
    blocks.clear();
  }

  [[noreturn]] void ThrowExhausted(int64_t num_bytes) const {
    const AllocatorStats now = stats();
    Throw(absl::StatusCode::kResourceExhausted, "out of memory on cpu: cannot allocate ", num_bytes,
          " bytes; live ", now.live_bytes, " bytes, peak ", now.peak_bytes, " bytes, pooled ",
          now.pooled_bytes, " bytes");
  }

  mutable std::mutex mutex_;
  std::array<std::vector<void*>, kNumClasses> free_blocks_;
  AllocatorStats stats_;
};

}  // namespace

std::shared_ptr<Allocator> MakeCpuAllocator() { return std::make_shared<CpuAllocator>(); }

}  // namespace weft
