#ifndef WEFT_DTENSOR_CONTEXT_REDISTRIBUTION_CACHE_H_
#define WEFT_DTENSOR_CONTEXT_REDISTRIBUTION_CACHE_H_

#include <cstdint>
#include <memory>
#include <tuple>

#include "dtensor/context/bounded_cache.h"
#include "mesh/layout.h"
#include "mesh/redistribution/lowering.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// A bounded map from (source layout, target layout, type) on one mesh to the plan, lowered for this rank: see
// BoundedCache.
class RedistributionCache {
 public:
  // Needs capacity >= 1.
  explicit RedistributionCache(int64_t capacity = 4096) : plans_(capacity) {}

  // The plan of an equal key, or null; whoever runs it keeps it.
  std::shared_ptr<const LoweredRedistribution> Find(const Layout& from, const Layout& to,
                                                    const TensorType& type);
  std::shared_ptr<const LoweredRedistribution> Insert(const Layout& from, const Layout& to,
                                                      const TensorType& type, LoweredRedistribution plan);

  const CacheStats& stats() const { return plans_.stats(); }
  int64_t size() const { return plans_.size(); }

 private:
  using Key = std::tuple<Layout, Layout, TensorType>;

  BoundedCache<Key, std::shared_ptr<const LoweredRedistribution>> plans_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_REDISTRIBUTION_CACHE_H_
