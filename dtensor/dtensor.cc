#include "dtensor/dtensor.h"

#include "dtensor/agreement.h"
#include "dtensor/redistribute.h"
#include "dtensor/tape.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// A leaf that is no parameter. Its name is a text only errors want, so only they make it.
class TensorLeafNode final : public LeafNode {
 public:
  TensorLeafNode(const DTensor& value, const Layout& gradient)
      : LeafNode(value.context()->state(), /*name=*/"", gradient),
        context_(value.context()),
        value_layout_(value.layout()),
        type_(value.type()) {}

  std::string Name() const override {
    return absl::StrCat("tensor ", type_.ToString(), " ", value_layout_.ToString(context_->mesh()));
  }

 private:
  IntrusivePtr<MeshContext> context_;
  Layout value_layout_;
  TensorType type_;
};

}  // namespace

DTensorImpl::DTensorImpl(const IntrusivePtr<MeshContext>& context, const Layout& layout,
                         const TensorType& type, Tensor local)
    : context(context), layout(layout), type(type), local(std::move(local)) {}

DTensorImpl::~DTensorImpl() = default;

void DTensorImpl::ShareOrigin(const DTensorImpl& source) {
  if (!source.origin) return;
  const int64_t version = source.copied_version();
  origin = version == source.origin->version
               ? source.origin
               : MakeIntrusive<const CopyOrigin>(source.origin->at_rest, version);
}

int64_t DTensorImpl::copied_version() const {
  const DTensorImpl& at_rest = *origin->at_rest;
  return writes && writes == at_rest.writes ? at_rest.version() : origin->version;
}

DTensor::DTensor(IntrusivePtr<DTensorImpl> impl) : impl_(std::move(impl)) {}

DTensor DTensor::FromLocal(const IntrusivePtr<MeshContext>& context, const Tensor& local,
                           const Layout& layout, const Shape& global_shape, const FromLocalOptions& options) {
  context->CheckPiece(local, "FromLocal");
  const ShardBox box = weft::LocalBox(global_shape, layout, context->mesh(), context->coordinate());
  WEFT_REQUIRE(local.shape() == box.shape, "FromLocal: layout ", layout.ToString(context->mesh()), " of ",
               TypeString(local.dtype(), global_shape), " gives this rank ", box.shape.ToString(), ", got ",
               local.TypeString());
  const TensorType type = {local.dtype(), global_shape};
  if (options.check_replicas) CheckReplicas(*context, local, type, layout, "FromLocal");
  const DTensor result(MakeIntrusive<DTensorImpl>(context, layout, type, local));
  return options.gradient.has_value() ? result.RequiresGrad(*options.gradient) : result;
}

DTensor DTensor::FromLocal(const IntrusivePtr<MeshContext>& context, const Tensor& local,
                           const Layout& layout) {
  context->CheckPiece(local, "FromLocal");
  const TensorType type = AgreeOnType(*context, local, layout, "FromLocal");
  return DTensor(MakeIntrusive<DTensorImpl>(context, layout, type, local));
}

DTensor DTensor::Distribute(const IntrusivePtr<MeshContext>& context, const Tensor& full,
                            const Layout& layout) {
  WEFT_REQUIRE(!layout.HasPartial(), "Distribute: cannot make the terms of ",
               layout.ToString(context->mesh()),
               " from a whole value; distribute it replicated, then redistribute");
  const ShardBox box = weft::LocalBox(full.shape(), layout, context->mesh(), context->coordinate());
  Tensor piece = full;
  for (int dim = 0; dim < full.ndim(); ++dim) piece = piece.Slice(dim, box.offset[dim], box.shape[dim]);
  // A copy, so that writing to `full` afterwards does not change a value that is documented as immutable.
  return DTensor(MakeIntrusive<DTensorImpl>(context, layout, TensorType{full.dtype(), full.shape()},
                                            CloneTensor(piece, context->allocator())));
}

const IntrusivePtr<MeshContext>& DTensor::context() const {
  WEFT_REQUIRE(defined(), "this DTensor is undefined (default-constructed)");
  return impl_->context;
}

const Layout& DTensor::layout() const {
  WEFT_REQUIRE(defined(), "this DTensor is undefined (default-constructed)");
  return impl_->layout;
}

const TensorType& DTensor::type() const {
  WEFT_REQUIRE(defined(), "this DTensor is undefined (default-constructed)");
  return impl_->type;
}

const Tensor& DTensor::ToLocal() const {
  WEFT_REQUIRE(defined(), "this DTensor is undefined (default-constructed)");
  return impl_->local;
}

ShardBox DTensor::LocalBox() const {
  return weft::LocalBox(shape(), layout(), context()->mesh(), context()->coordinate());
}

DTensor DTensor::Redistribute(const Layout& layout, const RedistributeOptions& options) const {
  WEFT_REQUIRE(layout.ndim() == ndim() && layout.num_axes() == context()->mesh().num_axes(),
               "Redistribute: layout ", layout.ToString(), " has ", layout.ndim(), " dims and ",
               layout.num_axes(), " axes; the tensor is ", ToString(), " on mesh ",
               context()->mesh().ToString());
  const bool recorded = requires_grad() && context()->state().grad_enabled();
  if (layout == this->layout() && !recorded) return *this;
  Tensor local = RedistributeLocal(*context(), impl_->local, type(), this->layout(), layout);
  DTensor result(MakeIntrusive<DTensorImpl>(context(), layout, type(), std::move(local)));
  result.impl_->ShareWrites(*impl_);
  result.impl_->ShareOrigin(*impl_);
  if (recorded) RecordRedistribute(*this, result, options);
  return result;
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

DTensor DTensor::Detach() const { return requires_grad() ? WithoutHistory(*this) : *this; }

DTensor DTensor::RequiresGrad() const {
  WEFT_REQUIRE(!layout().HasPartial(),
               "RequiresGrad: the gradient of a leaf rests in the leaf's layout, which cannot be ",
               layout().ToString(context()->mesh()),
               "; redistribute it first, or say where the gradient is to rest: RequiresGrad(layout)");
  return RequiresGrad(layout());
}

DTensor DTensor::RequiresGrad(const Layout& gradient) const {
  WEFT_REQUIRE(IsFloating(dtype()), "RequiresGrad: only floating tensors have gradients, got ", ToString());
  WEFT_REQUIRE(gradient.ndim() == ndim() && gradient.num_axes() == context()->mesh().num_axes(),
               "RequiresGrad: gradient layout ", gradient.ToString(), " has ", gradient.ndim(), " dims and ",
               gradient.num_axes(), " axes; the tensor is ", ToString(), " on mesh ",
               context()->mesh().ToString());
  for (int axis : gradient.PartialAxes()) {
    const ReduceOp op = gradient.partial_op(axis);
    WEFT_REQUIRE(op == ReduceOp::kSum || op == ReduceOp::kAvg, "RequiresGrad: gradients add up, so that of ",
                 ToString(), " cannot lie as ", gradient.ToString(context()->mesh()));
  }
  DTensor leaf(MakeIntrusive<DTensorImpl>(context(), layout(), type(), ToLocal()));
  leaf.impl_->writes = impl_->writes ? impl_->writes : MakeIntrusive<WriteLog>();
  leaf.impl_->node = IntrusivePtr<TapeNode>(new TensorLeafNode(*this, gradient));
  return leaf;
}

bool DTensor::requires_grad() const { return defined() && impl_->node; }

DTensor DTensor::grad() const {
  WEFT_REQUIRE(requires_grad(), "grad: this tensor wants no gradient; make it a leaf with RequiresGrad()");
  const LeafNode* leaf = dynamic_cast<const LeafNode*>(impl_->node.get());
  WEFT_REQUIRE(leaf != nullptr, "grad: only leaves keep their gradient; this is a result of ",
               impl_->node->Name());
  return leaf->gradient();
}

std::string DTensor::ToString() const {
  if (!defined()) return "undefined";
  return absl::StrCat(type().ToString(), " ", layout().ToString(context()->mesh()));
}

}  // namespace weft
