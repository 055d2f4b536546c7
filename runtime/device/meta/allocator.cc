#include "runtime/device/allocator.h"

#include <algorithm>
#include <mutex>

#include "runtime/base/error.h"

namespace weft {
namespace {

class MetaAllocator final : public Allocator {
 public:
  Device device() const override { return {DeviceType::kMeta}; }

  void* Allocate(int64_t num_bytes) override {
    WEFT_REQUIRE(num_bytes >= 0, "Allocate: expected at least 0 bytes, got ", num_bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.live_bytes += RoundUpToGranule(num_bytes);
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
    ++stats_.num_allocations;
    return nullptr;
  }

  void Deallocate(void*, int64_t num_bytes) noexcept override {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.live_bytes -= RoundUpToGranule(num_bytes);
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
  mutable std::mutex mutex_;
  AllocatorStats stats_;
};

}  // namespace

std::shared_ptr<Allocator> MakeMetaAllocator() { return std::make_shared<MetaAllocator>(); }

}  // namespace weft
