#ifndef WEFT_DTENSOR_BOUNDED_CACHE_H_
#define WEFT_DTENSOR_BOUNDED_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace weft {

// What a rank's caches count.
struct CacheStats {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t evictions = 0;

  bool operator==(const CacheStats&) const = default;
};

// Removes the older half, at least one, of a map to values with a member `age`, all different. Returns how
// many went. Needs a map that is not empty.
template <class Map>
int64_t EvictOldestHalf(Map& entries) {
  std::vector<uint64_t> ages;
  ages.reserve(entries.size());
  for (const auto& [key, stored] : entries) ages.push_back(stored.age);
  const auto last_out = ages.begin() + static_cast<std::ptrdiff_t>((ages.size() - 1) / 2);
  std::nth_element(ages.begin(), last_out, ages.end());
  const uint64_t oldest_half = *last_out;
  return static_cast<int64_t>(
      absl::erase_if(entries, [oldest_half](const auto& entry) { return entry.second.age <= oldest_half; }));
}

// A bounded map from keys to what was worked out for them: at most `capacity` entries; the oldest half goes
// when it is full. No locks: the owning rank's thread only.
template <class Key, class Value>
class BoundedCache {
 public:
  // Needs capacity >= 1.
  explicit BoundedCache(int64_t capacity) : capacity_(capacity) {}

  // The value of an equal key, or null. The pointer holds until the next Insert.
  const Value* Find(const Key& key) {
    const auto it = entries_.find(key);
    if (it == entries_.end()) {
      ++stats_.misses;
      return nullptr;
    }
    ++stats_.hits;
    return it->second.value.get();
  }
  const Value* Insert(Key key, Value value) {
    if (size() >= capacity_) stats_.evictions += EvictOldestHalf(entries_);
    Stored stored{next_age_++, std::make_unique<const Value>(std::move(value))};
    return entries_.insert_or_assign(std::move(key), std::move(stored)).first->second.value.get();
  }

  const CacheStats& stats() const { return stats_; }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

 private:
  struct Stored {
    uint64_t age = 0;
    std::unique_ptr<const Value> value;
  };

  int64_t capacity_;
  uint64_t next_age_ = 0;
  CacheStats stats_;
  absl::flat_hash_map<Key, Stored> entries_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_BOUNDED_CACHE_H_
