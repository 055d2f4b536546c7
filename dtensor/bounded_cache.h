#ifndef WEFT_DTENSOR_BOUNDED_CACHE_H_
#define WEFT_DTENSOR_BOUNDED_CACHE_H_

#include <algorithm>
#include <cstdint>
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

}  // namespace weft

#endif  // WEFT_DTENSOR_BOUNDED_CACHE_H_
