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

// Where gradients of a node's operands go while its run still makes others.
class EarlyDelivery {
 public:
  // Takes the gradient of `operand`, which is none of the run's results then, if it can go on its way at once: it is the last
  // that comes to a node that TakesEarly. Returns whether it did; `gradient` is undefined then, otherwise as it was.
  virtual bool Take(int operand, DTensor& gradient) = 0;

 protected:
  ~EarlyDelivery() = default;
};

// How a backward pass runs a node. The context that it gives is of the rank's state alone: a node's tensors may lie on
// another mesh than the loss.
struct NodeRun {
  // The operands whose gradients this run is to make, by number; empty: all that have an edge.
  absl::Span<const bool> wanted = {};
  // Another run may follow: what the node saved stays.
  bool retain = false;
  // Another run does follow, the last, of the same gradients and for the other operands that have an edge.
  bool is_half = false;
  // Of a gradient that the node has no more use for; null: nothing goes early.
  EarlyDelivery* early = nullptr;
};

// What to do about a history that was used up: the end of that error's text.
inline constexpr char kHowToRetain[] = "; to run it twice, let the first keep it: {.retain_graph = true}";

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
  bool Wants(int operand, const NodeRun& run) const {
    return edges_[operand].node && (run.wanted.empty() || run.wanted[operand]);
  }

  // Whether a gradient may arrive in any layout, since what is behind the node brings the sum of them to
  // rest.
  virtual bool TakesAnyLayout() const { return false; }

  // Whether that holds of terms in another dtype than the operand's, too: they are summed as they come, in the widest dtype
  // of them, and cast behind that.
  virtual bool TakesTermsIn(DType /*dtype*/) const { return false; }

  // Whether the sum may arrive while the node that the last term comes from has not made its other gradients, for which it may
  // still read what is behind this node: nothing may change that before it has. A node that says so has one operand at most,
  // of which it holds too.
  virtual bool TakesEarly() const { return false; }

  // Whether a pass runs it although no gradient has arrived: other ranks do, too, and exchange messages in it.
  virtual bool RunsUnreached() const { return false; }

  // The dtype in which the gradients of an output are summed: each is cast to it as it arrives.
  virtual DType SumDType(DType arriving) const { return arriving; }

  // Where the node's gradients go, if others bring them to rest: told when the pass has ended.
  virtual GradientSink* sink() const { return nullptr; }

  // What the node is, for errors: an op's name, "redistribute", a parameter's path.
  virtual std::string Name() const = 0;

  // Gradients of the operands (undefined where not wanted) from those of the outputs (undefined where nothing
  // arrived). Drops what the node saved, unless the run retains it. Where gradients are enabled, what it calls
  // is recorded, on the operands' own history: gradients of gradients.
  // Errors: FailedPrecondition after a run that did not retain; where gradients are enabled and the node's
  //         gradient has none.
  virtual DTensors Backward(MeshContext& context, absl::Span<const DTensor> gradients,
                            const NodeRun& run) = 0;

  // The same of a node that has one output and no operands, for a caller who keeps no handle: what takes the gradient may
  // have the only one, and change it in its place.
  virtual void TakeGradient(MeshContext& context, DTensor gradient) { Backward(context, {gradient}, {}); }

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
