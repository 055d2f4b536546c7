// How modules of any inputs and outputs are called, and those of a model that lies on parts of its mesh: what comes from another
// mesh is brought to a module's own, and ranks that are not in that leave it out.

#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "dtensor/autograd/recompute.h"
#include "dtensor/dispatch.h"
#include "dtensor/mesh_transfer.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/part_call.h"
#include "ops/elementwise/cast.h"

namespace weft {
namespace {

// What `forward` makes of the inputs, over the module's border.
DTensors RunBody(const Module& module, const ModuleCall& call, const DTensors& inputs, int num_outputs,
                 absl::FunctionRef<DTensors(const DTensors& inputs)> forward) {
  const DTensors made = forward(call.Inputs(inputs));
  WEFT_REQUIRE(std::ssize(made) == num_outputs, "module '", module.path(), "': expected ", num_outputs,
               " outputs, got ", made.size());
  return call.Outputs(made);
}

}  // namespace

DTensors ModuleCall::Inputs(const DTensors& inputs) const {
  DTensors taken;
  for (size_t i = 0; i < inputs.size(); ++i) {
    taken.push_back(inputs[i].defined() ? Input(inputs[i], static_cast<int>(i)) : DTensor());
  }
  return taken;
}

DTensors ModuleCall::Outputs(const DTensors& outputs) const {
  DTensors given;
  for (size_t i = 0; i < outputs.size(); ++i) {
    given.push_back(outputs[i].defined() ? Output(outputs[i], static_cast<int>(i)) : DTensor());
  }
  return given;
}

// What is cast to fewer bytes is so before it moves, as within a mesh.
DTensor Module::Brought(const DTensor& x, const std::vector<BorderPin>& pins,
                        const std::optional<DType>& dtype, int index) const {
  if (!x.defined() || x.context()->mesh() == placed_.context->mesh()) return x;
  const bool narrows = dtype && !x.is_absent() && IsFloating(x.dtype()) &&
                       ItemSize(*dtype) < ItemSize(x.dtype()) && CastsAsItLies(x.dtype(), *dtype, x.layout());
  return BringTo(narrows ? Call(kCast, {x}, {.dtype = *dtype}) : x, placed_.context, [&](int ndim) {
    Layout layout(ndim, placed_.context->mesh().num_axes());
    for (const BorderPin& pin : pins) {
      if (pin.Pins(index, ndim)) layout = layout.PlacedAlong(pin.axis, pin.value);
    }
    return layout;
  });
}

DTensors Module::RunOnPart(const DTensors& inputs, int num_outputs,
                           absl::FunctionRef<DTensors(const DTensors&)> run) {
  RankState& state = context()->state();
  const std::string name = absl::StrCat("module '", path(), "'");
  if (state.in_backward()) {
    Throw(absl::StatusCode::kFailedPrecondition, name,
          " lies on a part of the ranks and cannot be computed again together with others: recompute modules "
          "within it");
  }
  DTensors brought;
  {
    const PathGuard path(state, placed_.path_id);
    for (const DTensor& input : inputs) {
      const int index = static_cast<int>(brought.size());
      brought.push_back(Brought(input, placed_.border.input, placed_.border.input_dtype, index));
    }
  }
  return CallOnPart(name, context(), brought, num_outputs, run);
}

DTensors Module::RunTensorsWhereTheyLie(const DTensors& inputs, int num_outputs) {
  const SaveOnHostGuard saves(context()->state(), SavesOnHost());
  const auto run = [this, num_outputs](const DTensors& given) {
    const ModuleCall call(*this, ModuleCall::Body::kForward);
    return RunBody(*this, call, given, num_outputs,
                   [this](const DTensors& taken) { return ForwardTensors(taken); });
  };
  if (placed_.recompute == nullptr || !Recomputes(context()->state(), *placed_.recompute)) return run(inputs);
  // Recompute knows the ranks by its inputs.
  if (absl::c_none_of(inputs, [](const DTensor& x) { return x.defined(); })) return run(inputs);
  return Recompute(WhileItLives(run), inputs, placed_.recompute->keep);
}

DTensors CallModule(Module& module, const DTensors& inputs, int num_outputs) {
  const auto run = [&](const DTensors& brought) {
    return module.RunTensorsWhereTheyLie(brought, num_outputs);
  };
  return module.place() == ModulePlace::kPart ? module.RunOnPart(inputs, num_outputs, run) : run(inputs);
}

DTensors CallModule(Module& module, const DTensors& inputs, int num_outputs,
                    absl::FunctionRef<DTensors(const DTensors& inputs)> forward) {
  const auto run = [&](const DTensors& brought) {
    const ModuleCall call(module, ModuleCall::Body::kFunction);
    return RunBody(module, call, brought, num_outputs, forward);
  };
  return module.place() == ModulePlace::kPart ? module.RunOnPart(inputs, num_outputs, run) : run(inputs);
}

DTensor CallModule(Module& module, const DTensors& inputs,
                   absl::FunctionRef<DTensor(const DTensors& inputs)> forward) {
  return CallModule(module, inputs, /*num_outputs=*/1,
                    [&](const DTensors& taken) -> DTensors { return {forward(taken)}; })[0];
}

}  // namespace weft
