// What a DTensor does with its history, and how one is made and moved, which shares that. A tensor knows its node
// by name alone (dtensor/dtensor.h), so that the tape may know tensors.

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/dtensor.h"
#include "dtensor/redistribution/redistribute.h"
#include "dtensor/tape/kept_results.h"
#include "dtensor/tape/leaf_node.h"
#include "dtensor/tape/redistribute_node.h"
#include "dtensor/tape/saved_value.h"
#include "dtensor/tape/tape_node.h"

namespace weft {
namespace {

// A leaf that is no parameter. Its name is a text only errors want, so only they make it.
class TensorLeafNode final : public LeafNode {
 public:
  TensorLeafNode(const DTensor& value, const Layout& gradient)
      : LeafNode(value.context()->state(), /*name=*/"", gradient, value.dtype()),
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

void RecordRedistribute(const DTensor& source, DTensor& result, const RedistributeOptions& options) {
  RankState& state = source.context()->state();
  if (KeptResults* const kept = state.kept_results(); kept != nullptr) [[unlikely]] {
    const DTensorRef read = source;
    kept->NoteReads(absl::MakeConstSpan(&read, 1));
  }
  result.impl()->node = MakeRedistributeNode(state, EdgeTo(source), source.layout(), options);
}

}  // namespace

DTensorImpl::DTensorImpl(const IntrusivePtr<MeshContext>& context, const Layout& layout,
                         const TensorType& type, Tensor piece, IntrusivePtr<PendingMoves> pending)
    : context(context), layout(layout), type(type), piece_(std::move(piece)), pending_(std::move(pending)) {}

DTensorImpl::~DTensorImpl() = default;

// What failed stays, so that every reader is told.
void DTensorImpl::Settle() const {
  if (pending_) {
    pending_->Settle();
    pending_ = nullptr;
  }
  if (!writes || !writes->pending) return;
  writes->pending->Settle();
  writes->pending = nullptr;
}

namespace {

IntrusivePtr<CopyOrigin> CloneOrigin(const CopyOrigin& origin, int64_t version) {
  auto clone = MakeIntrusive<CopyOrigin>();
  clone->at_rest = origin.at_rest;
  clone->version = version;
  clone->source = origin.source;
  clone->copy = origin.copy;
  clone->view = origin.view;
  return clone;
}

}  // namespace

void DTensorImpl::ShareOrigin(const DTensorImpl& source) {
  if (!source.origin) return;
  const int64_t version = source.copied_version();
  origin = version == source.origin->version
               ? source.origin
               : IntrusivePtr<const CopyOrigin>(CloneOrigin(*source.origin, version).get());
}

void DTensorImpl::SetViewOrigin(const DTensorImpl& source, const OpDef& op, const ResolvedCall& call,
                                const void* scalars, int view_output) {
  const IntrusivePtr<CopyOrigin> made = CloneOrigin(*source.origin, source.copied_version());
  made->view = {.viewed = source.origin,
                .dtype = source.type.dtype,
                .layout = source.layout,
                .op = &op,
                .call = IntrusivePtr<const ResolvedCall>(&call),
                .scalars = op.scalars_size() == 0 ? nullptr : op.CloneScalars(scalars),
                .output = view_output};
  origin = IntrusivePtr<const CopyOrigin>(made.get());
}

int64_t DTensorImpl::copied_version() const {
  const DTensorImpl& at_rest = *origin->at_rest;
  return writes && writes == at_rest.writes ? at_rest.version() : origin->version;
}

DTensor DTensorImpl::Moved(const Layout& to) const {
  DTensor result(
      MakeIntrusive<DTensorImpl>(context, to, type, RedistributeLocal(*context, Local(), type, layout, to)));
  result.impl()->ShareWrites(*this);
  result.impl()->ShareOrigin(*this);
  return result;
}

// Flattened: the calls in it would be 6% of a cached redistribution.
[[gnu::flatten]] DTensor DTensor::Redistribute(const Layout& layout,
                                               const RedistributeOptions& options) const {
  const MeshContext& mesh_context = *context();
  const DTensorImpl& source = *impl_;
  WEFT_REQUIRE(mesh_context.is_member(), "Redistribute: the tensor is ", ToString(),
               ": expected one that this rank has a piece of");
  WEFT_REQUIRE(layout.ndim() == source.layout.ndim() && layout.num_axes() == source.layout.num_axes(),
               "Redistribute: layout ", layout.ToString(), " has ", layout.ndim(), " dims and ",
               layout.num_axes(), " axes; the tensor is ", ToString(), " on mesh ",
               mesh_context.mesh().ToString());
  const bool recorded = source.node && source.context->state().grad_enabled();
  if (layout == source.layout && !recorded) return *this;
  DTensor result = source.Moved(layout);
  if (recorded) RecordRedistribute(*this, result, options);
  return result;
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
  DTensor leaf(MakeIntrusive<DTensorImpl>(context(), layout(), type(), impl_->piece(), impl_->pending()));
  leaf.impl_->SetWrites(impl_->writes ? impl_->writes : MakeIntrusive<WriteLog>());
  leaf.impl_->node = IntrusivePtr<TapeNode>(new TensorLeafNode(*this, gradient));
  return leaf;
}

DTensor DTensor::grad() const {
  WEFT_REQUIRE(requires_grad(), "grad: this tensor wants no gradient; make it a leaf with RequiresGrad()");
  const LeafNode* leaf = dynamic_cast<const LeafNode*>(impl_->node.get());
  WEFT_REQUIRE(leaf != nullptr, "grad: only leaves keep their gradient; this is a result of ",
               impl_->node->Name());
  return leaf->gradient();
}

}  // namespace weft
