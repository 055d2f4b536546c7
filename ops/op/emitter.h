// What backward rules and decompositions are written in: calls of ops.

#ifndef WEFT_OPS_OP_EMITTER_H_
#define WEFT_OPS_OP_EMITTER_H_

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

class OpDef;
template <class A, class R>
class Op;

// A tensor inside a backward rule or a decomposition: a number that the Emitter knows. Undefined by default.
struct Value {
  int id = -1;

  bool defined() const { return id >= 0; }
  bool operator==(const Value&) const = default;
};

using Values = absl::InlinedVector<Value, 4>;

// How the outputs of Emitter::EmitOnPieces lie along the dim that is in pieces.
enum class PieceOutputs {
  kAligned,   // each as long as its piece of operand 0: the whole is as long as operand 0
  kStatistic  // each of one extent, whatever the piece: the whole has that extent once a piece
};

// Runs ops on behalf of a backward rule or a decomposition. `dtensor` implements it, so what is emitted is
// dispatched, redistributed and sharded like a user's call; tests implement it on one device.
class Emitter {
 public:
  // The global type of a value.
  virtual TensorType TypeOf(Value value) const = 0;

  // Emits an op and returns its outputs. `like_operand` >= 0 says that output 0 is the gradient of that
  // operand (see GradContext::EmitLike);
  // Errors: as the op's own.
  virtual Values EmitErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                            const void* scalars, int like_operand) = 0;

  // Emits an op once for every piece of dim `dim` of operand 0, as if the piece were whole there, and lays
  // the outputs side by side along `dim`. Nothing is gathered, so a decomposition makes with it what depends
  // on where a piece begins: a scan (totals of the pieces, then each piece from its offset), the candidates
  // of a top-k. Into how many pieces the dim is cut is the emitter's business: one per rank along the axes
  // that split it; by default, on one device, one.
  //
  // Shape:  other operands and the outputs have operand 0's extents but for `dim`; there, other operands have
  //         one index per piece. Outputs that are kStatistic may not depend on the length of a piece, 0
  //         included.
  // Layout: operand 0 is not Partial (kSettle sees to it). Kernels may read where a piece lies in
  //         input_boxes[0].
  // Cost:   moving other operands to where operand 0 lies.
  virtual Values EmitOnPiecesErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                                    const void* scalars, int /*dim*/, PieceOutputs /*outputs*/) {
    return EmitErased(op, operands, attributes, scalars, /*like_operand=*/-1);
  }

  // Emits an op of one output, or the first of several: ctx.Emit(kContract, {dy, w}, {.x = "bn", ...}).
  template <class A, class R>
  Value Emit(const Op<A, R>& op, std::initializer_list<Value> operands,
             const std::type_identity_t<A>& attributes = {}, const std::type_identity_t<R>& scalars = {}) {
    return EmitErased(op, operands, &attributes, &scalars, /*like_operand=*/-1)[0];
  }

  // Emits an op and returns all outputs; any number of operands.
  template <class A, class R>
  Values EmitAll(const Op<A, R>& op, absl::Span<const Value> operands,
                 const std::type_identity_t<A>& attributes = {},
                 const std::type_identity_t<R>& scalars = {}) {
    return EmitErased(op, operands, &attributes, &scalars, /*like_operand=*/-1);
  }

  // EmitOnPiecesErased with attribute types: all outputs.
  template <class A, class R>
  Values EmitOnPieces(const Op<A, R>& op, std::initializer_list<Value> operands, int dim,
                      PieceOutputs outputs, const std::type_identity_t<A>& attributes = {},
                      const std::type_identity_t<R>& scalars = {}) {
    return EmitOnPiecesErased(op, operands, &attributes, &scalars, dim, outputs);
  }

 protected:
  ~Emitter() = default;
};

// What a backward rule sees of the call that it differentiates, with attribute types erased.
class GradContextBase : public Emitter {
 public:
  // The gradient with respect to output `output`. Undefined if nothing reached that output.
  virtual Value grad(int output) = 0;
  // An operand or output that the op `saves`, by name; by number of the operand for "x..." ops.
  // Errors: Internal for one that it does not save.
  virtual Value saved(absl::string_view name) = 0;
  // Whether the gradient of operand `operand` is wanted. Compute nothing that is not.
  virtual bool Wants(int operand) const = 0;
  // Whether a gradient of an operand that is wanted may be delivered in its own dtype, not the operand's: it is Partial, and
  // where it goes its terms are summed first, and cast behind that.
  virtual bool TakesTerms(int /*operand*/, Value /*gradient*/) const { return false; }
  virtual int num_operands() const = 0;
  virtual int num_outputs() const = 0;
  // Types of the operands and outputs of the call, saved or not.
  virtual const TensorType& operand_type(int operand) const = 0;
  virtual const TensorType& output_type(int output) const = 0;
  // Delivers the gradient of an operand: the gradient of the global value, of the operand's type, but for the dtype where
  // TakesTerms says so.
  virtual void SetGrad(int operand, Value gradient) = 0;
  // The same of a value that the rule does not use again: a parameter's gradient may be on its way to other ranks while the
  // rule makes the next. So rules make gradients of weights first. What they need of the saved values they read before: a
  // gathered weight is let go with its gradient.
  virtual void ReleaseGrad(int operand, Value gradient) { SetGrad(operand, gradient); }

  virtual const void* erased_attributes() const = 0;
  virtual const void* erased_scalars() const = 0;

 protected:
  ~GradContextBase() = default;
};

// The same with the op's attribute types: the argument of `OpFunctions::backward`.
template <class A, class R>
class GradContext {
 public:
  explicit GradContext(GradContextBase& base) : base_(base) {}

  // For functions that rules share.
  Emitter& emitter() { return base_; }

  const A& attributes() const { return *static_cast<const A*>(base_.erased_attributes()); }
  const R& scalars() const { return *static_cast<const R*>(base_.erased_scalars()); }

  Value grad(int output = 0) { return base_.grad(output); }
  Value saved(absl::string_view name) { return base_.saved(name); }
  bool Wants(int operand) const { return base_.Wants(operand); }
  bool TakesTerms(int operand, Value gradient) const { return base_.TakesTerms(operand, gradient); }
  int num_operands() const { return base_.num_operands(); }
  int num_outputs() const { return base_.num_outputs(); }
  const TensorType& operand_type(int operand) const { return base_.operand_type(operand); }
  const TensorType& output_type(int output) const { return base_.output_type(output); }
  TensorType TypeOf(Value value) const { return base_.TypeOf(value); }
  void SetGrad(int operand, Value gradient) { base_.SetGrad(operand, gradient); }
  void ReleaseGrad(int operand, Value gradient) { base_.ReleaseGrad(operand, gradient); }

  template <class A2, class R2>
  Value Emit(const Op<A2, R2>& op, std::initializer_list<Value> operands,
             const std::type_identity_t<A2>& attributes = {}, const std::type_identity_t<R2>& scalars = {}) {
    return base_.Emit(op, operands, attributes, scalars);
  }
  template <class A2, class R2>
  Values EmitAll(const Op<A2, R2>& op, absl::Span<const Value> operands,
                 const std::type_identity_t<A2>& attributes = {},
                 const std::type_identity_t<R2>& scalars = {}) {
    return base_.EmitAll(op, operands, attributes, scalars);
  }

  // As Emit, where output 0 is the gradient of `operand`: dims of it that no emitted operand has (a
  // vocabulary, a dim that was summed away) are then made only as far as `operand`'s own layout needs them.
  template <class A2, class R2>
  Value EmitLike(int operand, const Op<A2, R2>& op, std::initializer_list<Value> operands,
                 const std::type_identity_t<A2>& attributes = {},
                 const std::type_identity_t<R2>& scalars = {}) {
    return base_.EmitErased(op, operands, &attributes, &scalars, operand)[0];
  }

 private:
  GradContextBase& base_;
};

}  // namespace weft

#endif  // WEFT_OPS_OP_EMITTER_H_
