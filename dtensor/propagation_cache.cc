#include "dtensor/propagation_cache.h"

#include <utility>

namespace weft {

const CallPlan* PropagationCache::Find(const CallKey& key) {
  const auto it = plans_.find(key);
  if (it == plans_.end()) {
    ++stats_.misses;
    return nullptr;
  }
  ++stats_.hits;
  return it->second.plan.get();
}

const CallPlan* PropagationCache::Insert(const CallKey& key, IntrusivePtr<CallPlan> plan) {
  if (size() >= capacity_) stats_.evictions += EvictOldestHalf(plans_);
  plan->attributes = key.op().CloneAttributes(key.attributes());
  OwnedKey owned{&key.op(), plan->attributes, {key.words().begin(), key.words().end()}, key.Hash()};
  Stored stored{next_age_++, IntrusivePtr<const CallPlan>(plan.get())};
  return plans_.insert_or_assign(std::move(owned), std::move(stored)).first->second.plan.get();
}

}  // namespace weft
