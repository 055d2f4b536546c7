#include "dtensor/tape/saved_value.h"

#include "dtensor/call/execute.h"
#include "dtensor/host_memory.h"
#include "dtensor/redistribution/redistribute.h"
#include "dtensor/tape/copy_source.h"
#include "dtensor/tape/tape_node.h"
#include "ops/elementwise/cast.h"

namespace weft {
namespace {

// This rank's piece in another dtype, by the op's kernel, on all threads.
Tensor CastPiece(const DTensor& x, DType dtype) {
  const DTensor cast = Execute(kCast, {x}, {.dtype = dtype});
  WEFT_CHECK(cast.layout() == x.layout(), "a cast moved ", x.ToString());
  return cast.ToLocal();
}

// The copy, or view or cast of one, that has this origin, made again in this dtype and layout.
DTensor Remake(const CopyOrigin& origin, DType dtype, const Layout& layout) {
  DTensor value;
  if (origin.view) {
    const CopyOrigin::View& view = *origin.view;
    const DTensor viewed = Remake(*view.viewed, view.dtype, view.layout);
    const DTensorRef operands[] = {viewed};
    const NoScalars none;
    value = Execute({.op = *view.op,
                     .operands = operands,
                     .attributes = view.call->attributes.get(),
                     .scalars = view.scalars ? view.scalars.get() : &none})[view.output];
  } else if (origin.source != nullptr) {
    value = origin.source->Copy(origin.copy);
  } else {
    return MakeCopy(DTensor(origin.at_rest), dtype, layout);
  }
  WEFT_CHECK(value.dtype() == dtype, "a copy in ", DTypeName(value.dtype()), " was saved in ",
             DTypeName(dtype));
  return value.layout() == layout ? value : value.impl()->Moved(layout);
}

// Whether `value`, which has an origin, is a cast of a copy, or a view of one, that an update has left behind: under every plan
// it has elements of its own, and they cannot be made again. Not a copy itself: it may lie in the parameter's
// memory and follow it, so programs cannot count on it for the old weights.
bool IsOutdatedCast(const DTensorImpl& value) {
  if (value.copied_version() == value.origin->at_rest->version()) return false;
  for (const CopyOrigin* origin = value.origin.get(); origin->view; origin = origin->view->viewed.get()) {
    if (origin->view->op->is_remade()) return true;
  }
  return false;
}

}  // namespace

SavedValue::SavedValue(DTensorRef value) {
  if (value->origin && !IsOutdatedCast(*value.impl())) {
    value_ = DTensor(value->origin->at_rest);
    copy_ = Copy{value->origin, value->type.dtype, value->layout};
    version_ = value->copied_version();  // forward reads the copy, whatever has become of the parameter
  } else {
    value_ = value.Share();
    version_ = value->version();
    const RankState& state = value->context->state();
    if (state.saves_on_host() && !state.drops_history() && !value->context->is_host_side()) [[unlikely]] {
      value_ = SaveOnHost(value_, &there_);
    }
  }
}

DTensor SavedValue::Unpack(absl::string_view reader) const {
  if (value_.impl()->version() != version_) {
    Throw(absl::StatusCode::kFailedPrecondition, "Backward: ", reader, " needs the ", value_.ToString(),
          " that it saw in forward, but ", value_.impl()->writes->last_writer,
          " has changed it in place since");
  }
  if (!copy_) return there_ ? FetchSaved(value_, *there_) : value_;
  PurposeGuard purpose(value_.context()->state(), Purpose::kParam);
  return Remake(*copy_->origin, copy_->dtype, copy_->layout);
}

DTensor WithoutHistory(const DTensor& x) {
  const DTensorImpl& impl = *x.impl();  // of an absent tensor, too
  DTensor result(
      MakeIntrusive<DTensorImpl>(impl.context, impl.layout, impl.type, impl.piece(), impl.pending()));
  result.impl()->ShareWrites(impl);
  return result;
}

DTensor HistoryOf(const DTensor& x) {
  DTensor result(MakeIntrusive<DTensorImpl>(x.context(), x.layout(), x.type(), Tensor()));
  result.impl()->node = x.impl()->node;
  result.impl()->output = x.impl()->output;
  return result;
}

DTensor MakeCopy(const DTensor& at_rest, DType dtype, const Layout& layout) {
  const DTensor here = ToDevice(at_rest, MemoryKind::kWholeParam);
  MeshContext& context = *here.context();
  const MemoryKindGuard kind(*context.allocator(), MemoryKind::kWholeParam);
  Tensor local = here.ToLocal();
  if (dtype != here.dtype()) local = CastPiece(here, dtype);
  const TensorType type = {dtype, here.shape()};
  local = RedistributeLocal(context, local, type, here.layout(), layout);
  DTensor copy(MakeIntrusive<DTensorImpl>(here.context(), layout, type, std::move(local)));
  copy.impl()->ShareWrites(*at_rest.impl());
  return copy;
}

}  // namespace weft
