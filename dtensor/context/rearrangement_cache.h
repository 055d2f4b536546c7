#ifndef WEFT_DTENSOR_CONTEXT_REARRANGEMENT_CACHE_H_
#define WEFT_DTENSOR_CONTEXT_REARRANGEMENT_CACHE_H_

#include <memory>

#include "dtensor/context/bounded_cache.h"
#include "mesh/redistribution/rearrangement.h"

namespace weft {

// Rearrangements along one dim of a mesh, lowered for this rank.
class RearrangementCache : public BoundedCache<Rearrangement, std::shared_ptr<const LoweredRearrangement>> {
 public:
  using BoundedCache::BoundedCache;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_REARRANGEMENT_CACHE_H_
