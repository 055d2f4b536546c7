// A world that counts the buffers of certain sizes.

#ifndef WEFT_TESTS_PARALLEL_SCHEDULER_WATCHED_WORLD_H_
#define WEFT_TESTS_PARALLEL_SCHEDULER_WATCHED_WORLD_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/launch/world.h"
#include "tests/forwarding_allocator.h"

namespace weft {

// Watches the buffers of certain sizes.
class WatchingAllocator final : public ForwardingAllocator {
 public:
  explicit WatchingAllocator(std::shared_ptr<Allocator> inner) : ForwardingAllocator(std::move(inner)) {}

  void Watch(std::set<int64_t> sizes) {
    sizes_ = std::move(sizes), live_ = 0;
    for (OfKind& kind : kinds_) kind.live = 0;
    Restart();
  }
  void Restart() {
    peak_ = live_, count_ = 0, counts_.clear();
    for (OfKind& kind : kinds_) kind.peak = kind.live;
  }
  int64_t live() const { return live_; }  // watched bytes
  int64_t peak() const { return peak_; }  // the most of them at once
  int64_t peak(MemoryKind kind) const { return kinds_[static_cast<int>(kind)].peak; }
  int64_t count() const { return count_; }                              // watched buffers so far
  const std::map<int64_t, int64_t>& counts() const { return counts_; }  // the same by size

 private:
  void* DoAllocate(int64_t num_bytes, MemoryKind kind) override {
    if (sizes_.count(num_bytes) > 0) {
      live_ += num_bytes;
      peak_ = std::max(peak_, live_.load());
      OfKind& of_kind = kinds_[static_cast<int>(kind)];
      of_kind.live += num_bytes;
      of_kind.peak = std::max(of_kind.peak, of_kind.live.load());
      ++count_, ++counts_[num_bytes];
    }
    return ForwardingAllocator::DoAllocate(num_bytes, kind);
  }
  void DoDeallocate(void* data, int64_t num_bytes, MemoryKind kind) noexcept override {
    if (sizes_.count(num_bytes) > 0) live_ -= num_bytes, kinds_[static_cast<int>(kind)].live -= num_bytes;
    ForwardingAllocator::DoDeallocate(data, num_bytes, kind);
  }

  struct OfKind {
    std::atomic<int64_t> live = 0;
    int64_t peak = 0;
  };

  std::array<OfKind, kNumMemoryKinds> kinds_;
  std::set<int64_t> sizes_;
  std::atomic<int64_t> live_ = 0;  // a lane's worker may let go of a buffer
  int64_t peak_ = 0;
  int64_t count_ = 0;
  std::map<int64_t, int64_t> counts_;
};

class WatchedWorld final : public World {
 public:
  explicit WatchedWorld(World& inner)
      : WatchedWorld(inner, std::make_shared<WatchingAllocator>(inner.allocator())) {}

  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    return inner_.NewGroup(name, ranks);
  }
  WatchingAllocator& watch() { return *watch_; }

 private:
  WatchedWorld(World& inner, std::shared_ptr<WatchingAllocator> watch)
      : World(inner.rank(), inner.size(), /*num_threads=*/1, watch, inner.tracer()),
        inner_(inner),
        watch_(watch) {}

  World& inner_;
  const std::shared_ptr<WatchingAllocator> watch_;
};

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_SCHEDULER_WATCHED_WORLD_H_
