#include "dtensor/dtensor.h"

#include "dtensor/redistribution/agreement.h"
#include "dtensor/redistribution/redistribute.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

void RequireDefined(const DTensor& x) {
  WEFT_REQUIRE(x.defined(), "this DTensor is undefined (default-constructed)");
}

void RequirePresent(const DTensor& x) {
  RequireDefined(x);
  MeshContext& context = *x.impl()->context;
  if (context.is_member()) [[likely]]
    return;
  Throw(absl::StatusCode::kFailedPrecondition, "this DTensor is absent: it lies on mesh (",
        context.mesh().ToString(), "), which rank ", context.world().rank(),
        " is not in; what it is, is known on the ranks of that mesh, and in modules that take it");
}

}  // namespace

DTensor::DTensor(IntrusivePtr<DTensorImpl> impl) : impl_(std::move(impl)) {}

DTensor DTensor::FromLocal(const IntrusivePtr<MeshContext>& context, const Tensor& local,
                           const Layout& layout, const Shape& global_shape, const FromLocalOptions& options) {
  context->CheckPiece(local, "FromLocal");
  const ShardBox box = weft::LocalBox(global_shape, layout, context->mesh(), context->coordinate());
  WEFT_REQUIRE(local.shape() == box.shape, "FromLocal: layout ", layout.ToString(context->mesh()), " of ",
               TypeString(local.dtype(), global_shape), " gives this rank ", box.shape.ToString(), ", got ",
               local.TypeString());
  const TensorType type = {local.dtype(), global_shape};
  CheckPartials(layout, type.dtype, context->mesh());
  if (options.check_replicas) CheckReplicas(*context, local, type, layout, "FromLocal");
  const DTensor result(MakeIntrusive<DTensorImpl>(context, layout, type, local));
  return options.gradient.has_value() ? result.RequiresGrad(*options.gradient) : result;
}

DTensor DTensor::FromLocal(const IntrusivePtr<MeshContext>& context, const Tensor& local,
                           const Layout& layout) {
  context->CheckPiece(local, "FromLocal");
  const TensorType type = AgreeOnType(*context, local, layout, "FromLocal");
  CheckPartials(layout, type.dtype, context->mesh());
  return DTensor(MakeIntrusive<DTensorImpl>(context, layout, type, local));
}

DTensor DTensor::Distribute(const IntrusivePtr<MeshContext>& context, const Tensor& full,
                            const Layout& layout) {
  WEFT_REQUIRE(!layout.HasPartial(), "Distribute: cannot make the terms of ",
               layout.ToString(context->mesh()),
               " from a whole value; distribute it replicated, then redistribute");
  if (!context->is_member()) return Absent(context);
  const ShardBox box = weft::LocalBox(full.shape(), layout, context->mesh(), context->coordinate());
  Tensor piece = full;
  for (int dim = 0; dim < full.ndim(); ++dim) piece = piece.Slice(dim, box.offset[dim], box.shape[dim]);
  // A copy, so that writing to `full` afterwards does not change a value that is documented as immutable.
  return DTensor(MakeIntrusive<DTensorImpl>(context, layout, TensorType{full.dtype(), full.shape()},
                                            CloneTensor(piece, context->allocator())));
}

DTensor DTensor::Absent(const IntrusivePtr<MeshContext>& context) {
  WEFT_REQUIRE(!context->is_member(), "Absent: rank ", context->world().rank(), " is in mesh (",
               context->mesh().ToString(), "): expected a tensor");
  return DTensor(MakeIntrusive<DTensorImpl>(context, Layout(/*ndim=*/0, context->mesh().num_axes()),
                                            TensorType(), Tensor()));
}

const IntrusivePtr<MeshContext>& DTensor::context() const {
  RequireDefined(*this);
  return impl_->context;
}

const Layout& DTensor::layout() const {
  RequirePresent(*this);
  return impl_->layout;
}

const TensorType& DTensor::type() const {
  RequirePresent(*this);
  return impl_->type;
}

const Tensor& DTensor::ToLocal() const {
  RequirePresent(*this);
  return impl_->Local();
}

ShardBox DTensor::LocalBox() const {
  return weft::LocalBox(shape(), layout(), context()->mesh(), context()->coordinate());
}

Tensor DTensor::FullTensor() const {
  const Layout replicated(ndim(), context()->mesh().num_axes());
  return RedistributeLocal(*context(), ToLocal(), type(), layout(), replicated);
}

double DTensor::Item() const {
  WEFT_REQUIRE(shape().num_elements() == 1, "Item: expected a tensor of one element, got ", ToString());
  PurposeGuard purpose(context()->state(), Purpose::kLoss);
  return FullTensor().ToVector<double>()[0];
}

bool DTensor::requires_grad() const { return defined() && impl_->node; }

std::string DTensor::ToString() const {
  if (!defined()) return "undefined";
  if (is_absent()) return absl::StrCat("absent, on mesh (", context()->mesh().ToString(), ")");
  return absl::StrCat(type().ToString(), " ", layout().ToString(context()->mesh()));
}

}  // namespace weft
