#include "dtensor/tape/leaf_node.h"

#include <utility>

#include "dtensor/call/accumulate.h"
#include "dtensor/call/execute.h"
#include "dtensor/host_memory.h"
#include "dtensor/redistribution/implicit.h"
#include "ops/elementwise/cast.h"

namespace weft {

LeafNode::~LeafNode() {
  if (sink_ != nullptr) sink_->Forget(sink_index_);
}

void LeafNode::TakeGradient(MeshContext& context, DTensor gradient) {
  if (!expects_) return;
  const PurposeGuard purpose(context.state(), Purpose::kGrad);
  const NoImplicitChecksGuard planned(context.state());
  if (sink_ != nullptr) {
    sink_->Deliver(sink_index_, std::move(gradient));
  } else {
    AddGradient(gradient.Redistribute(layout_));
  }
}

void LeafNode::AddGradient(DTensor term) {
  AddTerm(std::move(term));
  if (ready_hooks_ == nullptr || ready_hooks_->empty()) return;
  for (const auto& hook : ready_hooks_->hooks()) hook();
}

// Cast there, too: what moves is what was reduced. Beside a GPU it is still on its way.
void LeafNode::AddOnHost(const DTensor& term) {
  DTensor brought = ToHost(term, MemoryKind::kGrad);
  if (brought.impl()->is_pending()) {
    AddArriving();
    arriving_.push_back(std::move(brought));
    return;
  }
  MeshContext& context = *brought.context();
  const NoImplicitChecksGuard planned(context.state());
  const MemoryKindGuard kind(*context.allocator(), MemoryKind::kGrad);
  if (IsCast(brought)) brought = Execute(kCast, {brought}, {.dtype = *dtype_});
  Accumulate(gradient_, std::move(brought));
}

void LeafNode::AddTerm(DTensor term) {
  if (on_host_) return AddOnHost(term);
  AddArriving();
  if (IsCast(term) || (gradient_.defined() && term.impl()->is_pending())) {
    arriving_.push_back(std::move(term));
  } else {
    Accumulate(gradient_, std::move(term));
  }
}

const DTensor& LeafNode::gradient() const {
  if (!arriving_.empty()) AddArriving();
  return gradient_;
}

void LeafNode::AddArriving() const {
  if (arriving_.empty()) return;
  MeshContext& context = *arriving_[0].context();
  const NoImplicitChecksGuard planned(context.state());
  const MemoryKindGuard kind(*context.allocator(), MemoryKind::kGrad);
  // One whose reduction has failed stays, so that every reader is told.
  while (!arriving_.empty()) {
    DTensor term = arriving_.front();
    if (IsCast(term)) term = Execute(kCast, {term}, {.dtype = *dtype_});
    Accumulate(gradient_, std::move(term));
    arriving_.erase(arriving_.begin());
  }
}

}  // namespace weft
