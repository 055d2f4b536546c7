#include "runtime/device/allocator.h"

#include <algorithm>
#include <mutex>

#include "runtime/base/error.h"

namespace weft {
namespace {

class MetaAllocator final : public Allocator {
 public:
  Device device() const override { return {DeviceType::kMeta}; }

  AllocatorStats stats() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

  MemoryByKind by_kind() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return by_kind_;
  }

  void ResetPeak() override {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.peak_bytes = stats_.live_bytes;
    by_kind_.ResetPeak();
  }

 private:
  void* DoAllocate(int64_t num_bytes, MemoryKind kind) override {
    WEFT_REQUIRE(num_bytes >= 0, "Allocate: expected at least 0 bytes, got ", num_bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.live_bytes += RoundUpToGranule(num_bytes);
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
    ++stats_.num_allocations;
    by_kind_.Add(kind, RoundUpToGranule(num_bytes));
    return nullptr;
  }

  void DoDeallocate(void*, int64_t num_bytes, MemoryKind kind) noexcept override {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.live_bytes -= RoundUpToGranule(num_bytes);
    by_kind_.Remove(kind, RoundUpToGranule(num_bytes));
  }

  mutable std::mutex mutex_;
  AllocatorStats stats_;
  MemoryByKind by_kind_;
};

}  // namespace

std::shared_ptr<Allocator> MakeMetaAllocator() { return std::make_shared<MetaAllocator>(); }

}  // namespace weft
