#include "dtensor/call/decomposition.h"

#include <utility>

#include "dtensor/call/call_observer.h"
#include "dtensor/call/call_on_pieces.h"
#include "ops/op/emitter.h"

namespace weft {
namespace {

// Executes what a decomposition emits.
class DecompositionEmitter final : public Emitter {
 public:
  DecompositionEmitter(absl::Span<const DTensorRef> operands, const OwnOperands* own, ExecuteFunction execute)
      : execute_(execute) {
    for (const DTensorRef operand : operands) values_.push_back(operand.Share());
    if (own != nullptr) own_ = *own;
    own_.resize(operands.size(), false);
  }

  TensorType TypeOf(Value value) const override { return values_[value.id].type(); }
  Values EmitErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                    const void* scalars, int /*like_operand*/) override {
    OwnOperands own;
    DTensorRefs tensors;
    for (Value operand : operands) {
      own.push_back(own_[operand.id]);
      tensors.push_back(values_[operand.id]);
    }
    return Hold(
        execute_({.op = op, .operands = tensors, .attributes = attributes, .scalars = scalars}, &own));
  }
  Values EmitOnPiecesErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                            const void* scalars, int dim, PieceOutputs outputs) override {
    DTensorRefs tensors;
    for (Value operand : operands) tensors.push_back(values_[operand.id]);
    return Hold(CallOnPieces({.op = op, .operands = tensors, .attributes = attributes, .scalars = scalars},
                             dim, outputs));
  }
  const DTensor& Get(Value value) const { return values_[value.id]; }

 private:
  Values Hold(DTensors outputs) {
    Values results;
    for (DTensor& output : outputs) {
      results.push_back({static_cast<int32_t>(values_.size())});
      values_.push_back(std::move(output));
      own_.push_back(true);
    }
    return results;
  }

  ExecuteFunction execute_;
  absl::InlinedVector<DTensor, 8> values_;
  OwnOperands own_;  // by value
};

}  // namespace

DTensors Decompose(const ErasedCall& call, const OwnOperands* own, ExecuteFunction execute) {
  const CallObserverGuard shown_already(call.operands[0]->context->state(), nullptr);
  DecompositionEmitter emitter(call.operands, own, execute);
  Values values;
  for (size_t i = 0; i < call.operands.size(); ++i) values.push_back({static_cast<int32_t>(i)});
  DTensors outputs;
  for (Value value : call.op.Decompose(emitter, values, call.attributes, call.scalars)) {
    outputs.push_back(emitter.Get(value));
  }
  return outputs;
}

}  // namespace weft
