#include "dtensor/nn/module_buffer.h"

#include "dtensor/mesh_transfer.h"
#include "dtensor/tape/saved_value.h"
#include "runtime/base/philox.h"
#include "runtime/tensor/copy.h"

namespace weft {

const DTensor& ModuleBuffer::Value() const {
  if (!is_here()) {
    Throw(absl::StatusCode::kFailedPrecondition, "buffer '", path(),
          "' is not on this rank: it belongs to another stage or part of the model");
  }
  if (!materialized()) {
    Throw(absl::StatusCode::kFailedPrecondition, "buffer '", path(),
          "' has no value yet: call Materialize or Parallelize on the model first");
  }
  return value_;
}

void ModuleBuffer::Set(const DTensor& value) {
  const DTensor& before = Value();
  WEFT_REQUIRE(value.defined() && value.type() == before.type(), "buffer '", path(), "': expected ",
               before.type().ToString(), ", got ",
               value.defined() ? value.type().ToString() : "an undefined tensor");
  const IntrusivePtr<MeshContext> context = before.context();
  const MemoryKindGuard kind(*context->allocator(), MemoryKind::kParam);
  const DTensor moved =
      MovedTo(value, context, before.layout(), [&] { return absl::StrCat("buffer '", path(), "'"); });
  value_ = WithoutHistory(moved);  // in a handle of its own, which is no parameter's copy
  if (!moved.impl()->writes) return;
  // Somebody writes there in place: an optimizer, if it is a parameter's memory.
  const Tensor own = CloneTensor(moved.ToLocal(), moved.context()->allocator());
  value_ = DTensor::FromLocal(moved.context(), own, moved.layout(), moved.shape());
}

void ModuleBuffer::Materialize(const IntrusivePtr<MeshContext>& context, DType dtype, const Layout& layout) {
  if (materialized()) {
    Throw(absl::StatusCode::kFailedPrecondition, "buffer '", path(), "' already has a value");
  }
  RankState& state = context->state();
  const NoGradGuard no_grad(state);
  const MemoryKindGuard kind(*context->allocator(), MemoryKind::kParam);
  value_ = MakeFirstValue(spec_.initializer,
                          {.context = context,
                           .layout = layout,
                           .type = {spec_.dtype.value_or(dtype), spec_.shape},
                           .key = {.seed = state.seed(), .stream = StreamOf(full_path()), .step = 0},
                           .path = path()});
}

}  // namespace weft
