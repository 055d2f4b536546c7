#include "runtime/device/allocator.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <new>

#include "runtime/device/pooled_allocator.h"

namespace weft {
namespace {

// From here on blocks are aligned to huge pages and ask for them: fewer faults and TLB misses.
constexpr int64_t kHugePage = int64_t{2} << 20;

std::align_val_t AlignmentOf(int64_t num_bytes) {
  return static_cast<std::align_val_t>(num_bytes >= kHugePage ? kHugePage : kAllocationGranule);
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kPoisons = true;
#else
constexpr bool kPoisons = false;
#endif

// AddressSanitizer sees a freed block, and the tail of a live one, as poisoned.
class CpuAllocator final : public PooledAllocator {
 public:
  CpuAllocator(int64_t cap_bytes, bool fill_freed)
      : PooledAllocator(cap_bytes, /*guards=*/fill_freed || kPoisons), fill_freed_(fill_freed) {}
  ~CpuAllocator() override { ReturnPoolToSystem(); }

  Device device() const override { return {DeviceType::kCpu}; }

 protected:
  void* TakeFromSystem(int64_t num_bytes) override {
    void* const block = ::operator new(num_bytes, AlignmentOf(num_bytes), std::nothrow);
    if (block != nullptr && num_bytes >= kHugePage) {
      madvise(block, num_bytes, MADV_HUGEPAGE);  // a hint: a kernel without huge pages refuses it
    }
    return block;
  }

  void ReturnToSystem(void* block, int64_t num_bytes) noexcept override {
    ASAN_UNPOISON_MEMORY_REGION(block, num_bytes);
    ::operator delete(block, AlignmentOf(num_bytes));
  }

  void Guard(void* block, int64_t num_bytes, [[maybe_unused]] int64_t usable_bytes) noexcept override {
    ASAN_UNPOISON_MEMORY_REGION(block, num_bytes);
    if (fill_freed_) PooledAllocator::Guard(block, num_bytes, usable_bytes);
    ASAN_POISON_MEMORY_REGION(block, num_bytes);
    ASAN_UNPOISON_MEMORY_REGION(block, usable_bytes);
  }

 private:
  const bool fill_freed_;
};

}  // namespace

std::shared_ptr<Allocator> MakeCpuAllocator(int64_t cap_bytes, bool fill_freed) {
  return std::make_shared<CpuAllocator>(cap_bytes, fill_freed);
}

}  // namespace weft
