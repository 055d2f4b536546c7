// How a module of a model that lies on parts of its mesh is called: what comes from another mesh is brought to its own,
// and ranks that are not in that leave it out.

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/dispatch.h"
#include "dtensor/mesh_transfer.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/part_call.h"
#include "ops/elementwise/cast.h"

namespace weft {

// What is cast to fewer bytes is so before it moves, as within a mesh.
DTensor Module::Brought(const DTensor& x, const std::vector<BorderPin>& pins,
                        const std::optional<DType>& dtype, int index) const {
  if (!x.defined() || x.context()->mesh() == placed_.context->mesh()) return x;
  const bool narrows =
      dtype && !x.is_absent() && IsFloating(x.dtype()) && ItemSize(*dtype) < ItemSize(x.dtype());
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

DTensors CallModule(Module& module, const DTensors& inputs, int num_outputs,
                    absl::FunctionRef<DTensors(const DTensors& inputs)> forward) {
  const auto run = [&](const DTensors& brought) {
    const ModuleCall call(module, ModuleCall::Body::kFunction);
    DTensors taken, given;
    for (size_t i = 0; i < brought.size(); ++i) {
      taken.push_back(brought[i].defined() ? call.Input(brought[i], static_cast<int>(i)) : DTensor());
    }
    const DTensors made = forward(taken);
    WEFT_REQUIRE(std::ssize(made) == num_outputs, "module '", module.path(), "': expected ", num_outputs,
                 " outputs, got ", made.size());
    for (size_t i = 0; i < made.size(); ++i) given.push_back(call.Output(made[i], static_cast<int>(i)));
    return given;
  };
  return module.place() == ModulePlace::kPart ? module.RunOnPart(inputs, num_outputs, run) : run(inputs);
}

DTensor CallModule(Module& module, const DTensors& inputs,
                   absl::FunctionRef<DTensor(const DTensors& inputs)> forward) {
  return CallModule(module, inputs, /*num_outputs=*/1,
                    [&](const DTensors& taken) -> DTensors { return {forward(taken)}; })[0];
}

}  // namespace weft
