#include "dtensor/context/propagation_cache.h"

#include <utility>

namespace weft {

const ResolvedCall* PropagationCache::Insert(const CallKey& key, IntrusivePtr<ResolvedCall> plan) {
  plan->attributes = key.op().CloneAttributes(key.attributes());
  OwnedKey owned{&key.op(), plan->attributes, {key.words().begin(), key.words().end()}, key.Hash()};
  return plans_.Insert(std::move(owned), IntrusivePtr<const ResolvedCall>(plan.get())).get();
}

}  // namespace weft
