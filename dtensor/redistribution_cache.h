#ifndef WEFT_DTENSOR_REDISTRIBUTION_CACHE_H_
#define WEFT_DTENSOR_REDISTRIBUTION_CACHE_H_

#include <cstdint>
#include <memory>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "dtensor/bounded_cache.h"
#include "dtensor/lowered_redistribution.h"
#include "mesh/layout.h"
#include "ops/tensor_type.h"

namespace weft {

// A bounded map from (source layout, target layout, type) on one mesh to the plan, lowered for this rank: at
// most `capacity` entries; the oldest half goes when it is full. No locks: the owning rank's thread only.
class RedistributionCache {
 public:
  // Needs capacity >= 1.
  explicit RedistributionCache(int64_t capacity = 4096) : capacity_(capacity) {}

  // The plan of an equal key, or null. The pointer holds until the next Insert.
  const LoweredRedistribution* Find(const Layout& from, const Layout& to, const TensorType& type);
  const LoweredRedistribution* Insert(const Layout& from, const Layout& to, const TensorType& type,
                                      LoweredRedistribution plan);

  const CacheStats& stats() const { return stats_; }
  int64_t size() const { return static_cast<int64_t>(plans_.size()); }

 private:
  using Key = std::tuple<Layout, Layout, TensorType>;
  struct Stored {
    uint64_t age = 0;
    std::unique_ptr<const LoweredRedistribution> plan;
  };

  int64_t capacity_;
  uint64_t next_age_ = 0;
  CacheStats stats_;
  absl::flat_hash_map<Key, Stored> plans_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_REDISTRIBUTION_CACHE_H_
