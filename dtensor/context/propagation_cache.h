#ifndef WEFT_DTENSOR_CONTEXT_PROPAGATION_CACHE_H_
#define WEFT_DTENSOR_CONTEXT_PROPAGATION_CACHE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "dtensor/context/bounded_cache.h"
#include "dtensor/context/call_key.h"
#include "dtensor/context/resolved_call.h"
#include "ops/op/op.h"
#include "runtime/base/intrusive_ptr.h"

namespace weft {

// A bounded map from calls to their plans: see BoundedCache. No locks: the owning rank's thread only.
class PropagationCache {
 public:
  // Needs capacity >= 1.
  explicit PropagationCache(int64_t capacity = 8192) : plans_(capacity) {}

  // The plan of an equal key, or null. The pointer holds until the next Insert; share it to keep it.
  const ResolvedCall* Find(const CallKey& key) { return plans_.Find(key).get(); }
  // Sets the plan's attributes to the key's.
  const ResolvedCall* Insert(const CallKey& key, IntrusivePtr<ResolvedCall> plan);

  const CacheStats& stats() const { return plans_.stats(); }
  int64_t size() const { return plans_.size(); }
  int64_t capacity() const { return plans_.capacity(); }

 private:
  struct OwnedKey {
    const OpDef* op;
    std::shared_ptr<const void> attributes;
    std::vector<uint64_t> words;
    size_t hash;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(const CallKey& key) const { return key.Hash(); }
    size_t operator()(const OwnedKey& key) const { return key.hash; }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const OwnedKey& a, const CallKey& b) const {
      return b.Equals(*a.op, a.attributes.get(), a.words);
    }
    bool operator()(const CallKey& a, const OwnedKey& b) const { return (*this)(b, a); }
    bool operator()(const OwnedKey& a, const OwnedKey& b) const {
      if (a.op != b.op || a.words != b.words) return false;
      // Attributes that hold a NaN do not equal themselves, but a key must: or it could not be taken out again.
      return a.attributes == b.attributes || a.op->EqualAttributes(a.attributes.get(), b.attributes.get());
    }
  };

  BoundedCache<OwnedKey, IntrusivePtr<const ResolvedCall>, Hash, Equal> plans_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_PROPAGATION_CACHE_H_
