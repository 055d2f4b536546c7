#include "dtensor/redistribution_cache.h"

#include <utility>

namespace weft {

const LoweredRedistribution* RedistributionCache::Find(const Layout& from, const Layout& to,
                                                       const TensorType& type) {
  const auto it = plans_.find(Key{from, to, type});
  if (it == plans_.end()) {
    ++stats_.misses;
    return nullptr;
  }
  ++stats_.hits;
  return it->second.plan.get();
}

const LoweredRedistribution* RedistributionCache::Insert(const Layout& from, const Layout& to,
                                                         const TensorType& type, LoweredRedistribution plan) {
  if (size() >= capacity_) stats_.evictions += EvictOldestHalf(plans_);
  Stored stored{next_age_++, std::make_unique<const LoweredRedistribution>(std::move(plan))};
  return plans_.insert_or_assign(Key{from, to, type}, std::move(stored)).first->second.plan.get();
}

}  // namespace weft
