#ifndef WEFT_DTENSOR_TAPE_TAPE_NODE_H_
#define WEFT_DTENSOR_TAPE_TAPE_NODE_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/context/rank_state.h"
#include "dtensor/dtensor.h"

namespace weft {

class GradientSink;

// One recorded operation: where gradients of its outputs become gradients of its operands.
class TapeNode : public RefCounted<TapeNode> {
 public:
  // An operand's origin; null where no gradient is wanted.
  struct Edge {
    IntrusivePtr<TapeNode> node;
    int output = 0;
  };

  // Few enough to lie in the node for all but ops of many operands.
  using Edges = absl::InlinedVector<Edge, 3>;

  TapeNode(RankState& state, Edges edges, int num_outputs)
      : edges_(std::move(edges)),
        num_outputs_(num_outputs),
        path_id_(state.path_id()),
        sequence_(state.NextSequence()) {}
  virtual ~TapeNode();

  absl::Span<const Edge> edges() const { return edges_; }
  int num_outputs() const { return num_outputs_; }
  uint64_t sequence() const { return sequence_; }  // order of recording
  int path_id() const { return path_id_; }         // module path at recording
  bool Wants(int operand) const { return static_cast<bool>(edges_[operand].node); }

  // Whether a gradient may arrive in any layout, since what is behind the node brings the sum of them to
  // rest.
  virtual bool TakesAnyLayout() const { return false; }

  // The dtype in which the gradients of an output are summed: each is cast to it as it arrives.
  virtual DType SumDType(DType arriving) const { return arriving; }

  // Where the node's gradients go, if others bring them to rest: told when the pass has ended.
  virtual GradientSink* sink() const { return nullptr; }

  // What the node is, for errors: an op's name, "redistribute", a parameter's path.
  virtual std::string Name() const = 0;

  // Gradients of the operands (undefined where not wanted) from those of the outputs (undefined where nothing
  // arrived). Drops what the node saved.
  // Errors: FailedPrecondition the second time.
  virtual DTensors Backward(MeshContext& context, absl::Span<const DTensor> gradients) = 0;

 private:
  friend class BackwardPass;

  Edges edges_;
  int num_outputs_;
  int path_id_;
  uint64_t sequence_;
  // Where the innermost backward pass that has reached the node keeps what arrives here; -1 outside passes.
  int pass_entry_ = -1;
};

// Where a gradient for `operand` goes; for operands that want one.
inline TapeNode::Edge EdgeTo(DTensorRef operand) { return {operand->node, operand->output}; }

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_TAPE_NODE_H_
