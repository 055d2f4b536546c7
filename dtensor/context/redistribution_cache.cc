#include "dtensor/context/redistribution_cache.h"

#include <utility>

namespace weft {

std::shared_ptr<const LoweredRedistribution> RedistributionCache::Find(const Layout& from, const Layout& to,
                                                                       const TensorType& type) {
  return plans_.Find(Key{from, to, type});
}

std::shared_ptr<const LoweredRedistribution> RedistributionCache::Insert(const Layout& from, const Layout& to,
                                                                         const TensorType& type,
                                                                         LoweredRedistribution plan) {
  return plans_.Insert(Key{from, to, type}, std::make_shared<const LoweredRedistribution>(std::move(plan)));
}

}  // namespace weft
