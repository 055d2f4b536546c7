#include "dtensor/propagation_cache.h"

#include "absl/hash/hash.h"

namespace weft {

size_t PropagationCache::Hash::operator()(const CallKey& key) const {
  const size_t attributes = key.op->HashAttributes(key.attributes);
  const bool has_like = key.like != nullptr;
  return absl::HashOf(key.op, attributes, key.types, key.layouts, has_like ? *key.like : Layout(), has_like);
}

bool PropagationCache::Equal::operator()(const CallKey& a, const CallKey& b) const {
  if (a.op != b.op || a.layouts != b.layouts || a.types != b.types) return false;
  if ((a.like == nullptr) != (b.like == nullptr) || (a.like != nullptr && *a.like != *b.like)) return false;
  return a.op->EqualAttributes(a.attributes, b.attributes);
}

const CallPlan* PropagationCache::Find(const CallKey& key) {
  const auto it = plans_.find(key);
  if (it == plans_.end()) {
    ++stats_.misses;
    return nullptr;
  }
  ++stats_.hits;
  return it->second.plan.get();
}

const CallPlan* PropagationCache::Insert(const CallKey& key, CallPlan plan) {
  if (size() >= capacity_) stats_.evictions += EvictOldestHalf(plans_);
  OwnedKey owned{key.op,
                 key.op->CloneAttributes(key.attributes),
                 {key.types.begin(), key.types.end()},
                 {key.layouts.begin(), key.layouts.end()},
                 key.like == nullptr ? std::nullopt : std::optional<Layout>(*key.like)};
  Stored stored{next_age_++, std::make_unique<const CallPlan>(std::move(plan))};
  return plans_.insert_or_assign(std::move(owned), std::move(stored)).first->second.plan.get();
}

}  // namespace weft
