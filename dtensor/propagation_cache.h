#ifndef WEFT_DTENSOR_PROPAGATION_CACHE_H_
#define WEFT_DTENSOR_PROPAGATION_CACHE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "dtensor/bounded_cache.h"
#include "mesh/layout.h"
#include "ops/op.h"
#include "ops/propagate.h"
#include "ops/tensor_type.h"

namespace weft {

// What decides how a call runs: the op, its static attributes, and its operands' types and layouts. Borrows.
struct CallKey {
  const OpDef* op = nullptr;
  const void* attributes = nullptr;
  absl::Span<const TensorType> types;
  absl::Span<const Layout> layouts;
  const Layout* like = nullptr;
};

// Everything about a call that follows from its key, on this rank: worked out once.
struct CallPlan {
  Strategy strategy;
  TensorTypes output_types;
  std::vector<bool> moves;  // per operand: must be redistributed first
  std::vector<ShardBox> operand_boxes;
  std::vector<ShardBox> output_boxes;
  ErasedKernel kernel = nullptr;
};

// A bounded map from calls to their plans: at most `capacity` entries; the oldest half goes when it is full.
class PropagationCache {
 public:
  // Needs capacity >= 1.
  explicit PropagationCache(int64_t capacity = 8192) : capacity_(capacity) {}

  // The plan of an equal key, or null. The pointer holds until the next Insert.
  const CallPlan* Find(const CallKey& key);
  const CallPlan* Insert(const CallKey& key, CallPlan plan);

  const CacheStats& stats() const { return stats_; }
  int64_t size() const { return static_cast<int64_t>(plans_.size()); }
  int64_t capacity() const { return capacity_; }

 private:
  struct OwnedKey {
    const OpDef* op;
    std::shared_ptr<const void> attributes;
    std::vector<TensorType> types;
    std::vector<Layout> layouts;
    std::optional<Layout> like;

    CallKey View() const { return {op, attributes.get(), types, layouts, like ? &*like : nullptr}; }
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(const CallKey& key) const;
    size_t operator()(const OwnedKey& key) const { return (*this)(key.View()); }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const CallKey& a, const CallKey& b) const;
    bool operator()(const OwnedKey& a, const CallKey& b) const { return (*this)(a.View(), b); }
    bool operator()(const CallKey& a, const OwnedKey& b) const { return (*this)(a, b.View()); }
    bool operator()(const OwnedKey& a, const OwnedKey& b) const { return (*this)(a.View(), b.View()); }
  };
  struct Stored {
    uint64_t age;
    std::unique_ptr<const CallPlan> plan;
  };

  int64_t capacity_;
  uint64_t next_age_ = 0;
  CacheStats stats_;
  absl::flat_hash_map<OwnedKey, Stored, Hash, Equal> plans_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_PROPAGATION_CACHE_H_
