#ifndef WEFT_DTENSOR_TAPE_H_
#define WEFT_DTENSOR_TAPE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/dispatch.h"
#include "dtensor/dtensor.h"
#include "dtensor/propagation_cache.h"

namespace weft {

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

  // What the node is, for errors: an op's name, "redistribute", a parameter's path.
  virtual std::string Name() const = 0;

  // Gradients of the operands (undefined where not wanted) from those of the outputs (undefined where nothing
  // arrived). Drops what the node saved.   Errors: FailedPrecondition the second time.
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

// The end of a gradient's way: a parameter, or a tensor of a user's own. When every use in a backward pass
// has delivered, the sum is brought to `layout` (the at-rest layout of the gradient) once, and added to
// `gradient`.
class LeafNode : public TapeNode {
 public:
  LeafNode(RankState& state, std::string name, const Layout& layout)
      : TapeNode(state, {}, /*num_outputs=*/1), name_(std::move(name)), layout_(layout) {}

  bool TakesAnyLayout() const override { return true; }
  std::string Name() const override { return name_; }
  DTensors Backward(MeshContext& context, absl::Span<const DTensor> gradients) override;

  const DTensor& gradient() const { return gradient_; }
  void ClearGradient() { gradient_ = DTensor(); }
  void set_gradient(DTensor gradient) { gradient_ = std::move(gradient); }

 private:
  std::string name_;
  Layout layout_;
  DTensor gradient_;
};

// A value that backward will read: kept as it is, or, for a parameter's cast or redistributed copy, as the
// at-rest value and the dtype and layout to bring it to again.
class SavedValue {
 public:
  SavedValue() = default;
  explicit SavedValue(DTensorRef value);

  // Cost:   the redistribution, for a parameter's copy, under purpose `param`.
  // Errors: FailedPrecondition naming `reader` and the op that has written to the value since it was saved,
  //         or, to a parameter, since the copy was made that was saved.
  DTensor Unpack(absl::string_view reader) const;
  bool defined() const { return value_.defined(); }

 private:
  DTensor value_;
  struct Copy {
    DType dtype;
    Layout layout;
  };
  std::optional<Copy> copy_;
  int64_t version_ = 0;
};

// The same value in a handle of its own, with no history.
DTensor WithoutHistory(const DTensor& x);

// A parameter's copy as compute reads it: cast first, so that what moves is in the smaller dtype. No history.
DTensor MakeCopy(const DTensor& at_rest, DType dtype, const Layout& layout);

// A link between a parameter's copy of another dtype and the parameter: the gradient of each use of the copy
// is cast to `dtype`, and then they are summed and reduced.
IntrusivePtr<TapeNode> MakeCastNode(RankState& state, IntrusivePtr<TapeNode> source, DType dtype);

// Whether a call of `op` is to be recorded: gradients are enabled and some operand wants one. Asked before it
// runs. Errors: FailedPrecondition if so, and the op has a floating output and no backward.
bool WantsRecording(const OpDef& op, absl::Span<const DTensorRef> operands,
                    absl::Span<const TensorType> outputs);

// Records a call of `op` on the outputs. `operands` are the caller's, `used` the same after redistribution:
// history follows the first, backward reads the second. The record shares `plan`.
void RecordCall(const OpDef& op, const CallPlan& plan, absl::Span<const DTensorRef> operands,
                absl::Span<const DTensorRef> used, absl::Span<DTensor> outputs, const void* scalars);

// One more term of a gradient: `sum` is `term` if it was undefined, else their sum; in place, where nobody
// else holds `sum`.
void Accumulate(DTensor& sum, DTensor term);

// Records an explicit Redistribute of `source` on `result`.
void RecordRedistribute(const DTensor& source, DTensor& result, const RedistributeOptions& options);

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_H_
