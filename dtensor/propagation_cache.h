#ifndef WEFT_DTENSOR_PROPAGATION_CACHE_H_
#define WEFT_DTENSOR_PROPAGATION_CACHE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/bounded_cache.h"
#include "dtensor/call_key.h"
#include "mesh/layout.h"
#include "ops/op.h"
#include "ops/propagate.h"
#include "ops/tensor_type.h"
#include "runtime/base/intrusive_ptr.h"

namespace weft {

// Everything about a call that follows from its key, on this rank: worked out once. Immutable once it is
// cached, and shared: what is recorded of a call holds its plan, whatever the cache drops in the meantime.
struct CallPlan : RefCounted<CallPlan> {
  // Of the key.
  std::vector<TensorType> operand_types;
  std::vector<Layout> operand_layouts;
  std::shared_ptr<const void> attributes;

  Strategy strategy;
  TensorTypes output_types;
  absl::InlinedVector<bool, 4> moves;  // per operand: must be redistributed first
  bool moves_any = false;
  std::vector<ShardBox> operand_boxes;
  std::vector<ShardBox> output_boxes;
  ErasedKernel kernel = nullptr;

  // The op's texts as numbers of values, operands first, then outputs: what backward reads, and what the
  // kernel overwrites.
  absl::InlinedVector<int, 4> saves;
  absl::InlinedVector<int, 4> in_place;

  // Where operand `i` lies when the op runs. A lowering sees the operands as they are.
  const Layout& used_layout(size_t i) const {
    return strategy.lowered ? operand_layouts[i] : strategy.operands[i];
  }
};

// A bounded map from calls to their plans: see BoundedCache. No locks: the owning rank's thread only.
class PropagationCache {
 public:
  // Needs capacity >= 1.
  explicit PropagationCache(int64_t capacity = 8192) : plans_(capacity) {}

  // The plan of an equal key, or null. The pointer holds until the next Insert; share it to keep it.
  const CallPlan* Find(const CallKey& key) { return plans_.Find(key).get(); }
  // Sets the plan's attributes to the key's.
  const CallPlan* Insert(const CallKey& key, IntrusivePtr<CallPlan> plan);

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
      return a.op == b.op && a.words == b.words &&
             a.op->EqualAttributes(a.attributes.get(), b.attributes.get());
    }
  };

  BoundedCache<OwnedKey, IntrusivePtr<const CallPlan>, Hash, Equal> plans_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_PROPAGATION_CACHE_H_
