#ifndef WEFT_DTENSOR_CONTEXT_RESOLVED_CALL_H_
#define WEFT_DTENSOR_CONTEXT_RESOLVED_CALL_H_

#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "mesh/layout.h"
#include "mesh/shard_math.h"
#include "ops/op/op.h"
#include "ops/sharding/propagate.h"
#include "runtime/base/intrusive_ptr.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// Everything about a call that follows from its key, on this rank: worked out once. Immutable once it is
// cached, and shared: what is recorded of a call holds its plan, whatever the cache drops in the meantime.
struct ResolvedCall : RefCounted<ResolvedCall> {
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

  // Where operand `i` lies when the op runs. A decomposition sees the operands as they are.
  const Layout& used_layout(size_t i) const {
    return strategy.decomposed ? operand_layouts[i] : strategy.operands[i];
  }
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_RESOLVED_CALL_H_
