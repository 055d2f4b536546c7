#include "tests/ops/single_device.h"

#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

TensorType TypeOfTensor(const Tensor& tensor) { return {tensor.dtype(), tensor.shape()}; }

std::vector<std::string> Names(const char* text) { return absl::StrSplit(text, ' ', absl::SkipEmpty()); }

// Values of a SingleDevice as seen by the backward rule of one call. Holds the rule to its declaration.
class OneCall final : public GradContextBase {
 public:
  OneCall(SingleDevice& device, const OpDef& op, Values operands, Values outputs, Values output_gradients,
          const void* attributes, const void* scalars, std::vector<bool> wanted)
      : device_(device),
        op_(op),
        operands_(std::move(operands)),
        outputs_(std::move(outputs)),
        output_gradients_(std::move(output_gradients)),
        attributes_(attributes),
        scalars_(scalars),
        wanted_(std::move(wanted)),
        gradients_(operands_.size()) {
    for (Value value : operands_) operand_types_.push_back(device_.TypeOf(value));
    for (Value value : outputs_) output_types_.push_back(device_.TypeOf(value));
  }

  Value grad(int output) override {
    WEFT_CHECK(output >= 0 && output < num_outputs(), op_.name(), " has no output ", output);
    return output_gradients_[output];
  }

  Value saved(absl::string_view name) override {
    const std::vector<std::string> saves = Names(op_.saves());
    const bool variadic = absl::StrContains(op_.operands(), "...");
    const bool listed =
        absl::c_linear_search(saves, name) || (variadic && absl::c_linear_search(saves, "x..."));
    WEFT_CHECK(listed, op_.name(), " reads '", name, "' in backward and saves '", op_.saves(), "'");
    int number = -1;
    if (!variadic) {
      number = op_.FindValue(name);
    } else if (!absl::SimpleAtoi(name, &number)) {
      const std::vector<std::string> outputs = Names(op_.outputs());
      number = num_operands() + static_cast<int>(absl::c_find(outputs, name) - outputs.begin());
    }
    WEFT_CHECK(number >= 0 && number < num_operands() + num_outputs(), op_.name(), " has no '", name, "'");
    return number < num_operands() ? operands_[number] : outputs_[number - num_operands()];
  }

  bool Wants(int operand) const override { return wanted_[operand]; }
  int num_operands() const override { return static_cast<int>(operands_.size()); }
  int num_outputs() const override { return static_cast<int>(outputs_.size()); }
  const TensorType& operand_type(int operand) const override { return operand_types_[operand]; }
  const TensorType& output_type(int output) const override { return output_types_[output]; }

  void SetGrad(int operand, Value gradient) override {
    WEFT_CHECK(operand >= 0 && operand < num_operands(), op_.name(), " has no operand ", operand);
    WEFT_CHECK(wanted_[operand], op_.name(), " delivers the gradient of operand ", operand,
               ", which is not wanted");
    WEFT_CHECK(!gradients_[operand].defined(), op_.name(), " delivers the gradient of operand ", operand,
               " twice");
    WEFT_CHECK(device_.TypeOf(gradient) == operand_types_[operand], op_.name(), " delivers a gradient ",
               device_.TypeOf(gradient).ToString(), " for operand ", operand, " of ",
               operand_types_[operand].ToString());
    gradients_[operand] = gradient;
  }

  const void* erased_attributes() const override { return attributes_; }
  const void* erased_scalars() const override { return scalars_; }

  TensorType TypeOf(Value value) const override { return device_.TypeOf(value); }
  Values EmitErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                    const void* scalars, int like_operand) override {
    Values outputs = device_.EmitErased(op, operands, attributes, scalars, like_operand);
    WEFT_CHECK(like_operand < 0 || device_.TypeOf(outputs[0]).shape == operand_types_[like_operand].shape,
               op_.name(), " emits ", op.name(), " like operand ", like_operand, " of ",
               operand_types_[like_operand].ToString(), " and gets ", device_.TypeOf(outputs[0]).ToString());
    return outputs;
  }

  const Values& gradients() const { return gradients_; }

 private:
  SingleDevice& device_;
  const OpDef& op_;
  Values operands_;
  Values outputs_;
  Values output_gradients_;
  const void* attributes_;
  const void* scalars_;
  std::vector<bool> wanted_;
  TensorTypes operand_types_;
  TensorTypes output_types_;
  Values gradients_;
};

std::vector<Tensor> Tensors(const SingleDevice& device, absl::Span<const Value> values) {
  std::vector<Tensor> tensors;
  for (Value value : values) tensors.push_back(value.defined() ? device.Get(value) : Tensor());
  return tensors;
}

Values AddAll(SingleDevice& device, absl::Span<const Tensor> tensors) {
  Values values;
  for (const Tensor& tensor : tensors) values.push_back(tensor.defined() ? device.Add(tensor) : Value());
  return values;
}

}  // namespace

ShardBox SplitBox(const Shape& shape, int dim, Range range) {
  ShardBox box = WholeBox(shape);
  box.offset[dim] = range.offset;
  box.shape[dim] = range.size;
  return box;
}

Piece WholePiece(const Tensor& tensor) { return {tensor, WholeBox(tensor.shape())}; }

Piece SplitPiece(const Tensor& whole, int dim, Range range) {
  return {CloneTensor(whole.Slice(dim, range.offset, range.size), MakeCpuAllocator()),
          SplitBox(whole.shape(), dim, range)};
}

SingleDevice::SingleDevice(int num_threads) : pool_(num_threads), allocator_(MakeCpuAllocator()) {}

Value SingleDevice::Add(const Tensor& tensor) {
  WEFT_CHECK(tensor.defined(), "an undefined tensor has no value");
  tensors_.push_back(tensor);
  return {static_cast<int>(tensors_.size()) - 1};
}

const Tensor& SingleDevice::Get(Value value) const {
  WEFT_CHECK(value.id >= 0 && value.id < static_cast<int>(tensors_.size()), "no value ", value.id);
  return tensors_[value.id];
}

TensorType SingleDevice::TypeOf(Value value) const { return TypeOfTensor(Get(value)); }

Values SingleDevice::EmitErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                                const void* scalars, int) {
  std::vector<Piece> pieces;
  TensorTypes types;
  for (Value value : operands) {
    pieces.push_back(WholePiece(Get(value)));
    types.push_back(TypeOf(value));
  }
  std::vector<ShardBox> boxes;
  for (const TensorType& type : op.Infer(types, attributes)) boxes.push_back(WholeBox(type.shape));
  Values outputs;
  for (const Tensor& tensor : RunPieces(op, pieces, boxes, attributes, scalars))
    outputs.push_back(Add(tensor));
  return outputs;
}

std::vector<Tensor> SingleDevice::RunPieces(const OpDef& op, absl::Span<const Piece> operands,
                                            absl::Span<const ShardBox> output_boxes, const void* attributes,
                                            const void* scalars) {
  KernelContext context{pool_, allocator_};
  return RunKernel(op, context, operands, output_boxes, attributes, scalars);
}

std::vector<Tensor> RunErased(const OpDef& op, absl::Span<const Tensor> operands, const void* attributes,
                              const void* scalars, int num_threads) {
  SingleDevice device(num_threads);
  const Values values = AddAll(device, operands);
  return Tensors(device, device.EmitErased(op, values, attributes, scalars, /*like_operand=*/-1));
}

std::vector<Tensor> RunDecomposedErased(const OpDef& op, absl::Span<const Tensor> operands,
                                        const void* attributes, const void* scalars) {
  SingleDevice device;
  const Values values = AddAll(device, operands);
  return Tensors(device, op.Decompose(device, values, attributes, scalars));
}

std::vector<Tensor> RunBackwardErased(const OpDef& op, absl::Span<const Tensor> operands,
                                      absl::Span<const Tensor> output_gradients, const void* attributes,
                                      const void* scalars, const std::vector<bool>& wanted) {
  WEFT_CHECK(op.has_backward(), op.name(), " has no backward");
  SingleDevice device;
  Values values = AddAll(device, operands);
  Values outputs = device.EmitErased(op, values, attributes, scalars, /*like_operand=*/-1);
  WEFT_CHECK(output_gradients.size() == outputs.size(), op.name(), " has ", outputs.size(), " outputs, got ",
             output_gradients.size(), " gradients");
  std::vector<bool> wants = wanted;
  if (wants.empty()) {
    for (const Tensor& operand : operands) wants.push_back(IsFloating(operand.dtype()));
  }
  OneCall call(device, op, std::move(values), std::move(outputs), AddAll(device, output_gradients),
               attributes, scalars, std::move(wants));
  op.Backward(call);
  return Tensors(device, call.gradients());
}

}  // namespace weft
