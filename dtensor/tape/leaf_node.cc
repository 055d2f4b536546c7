#include "dtensor/tape/leaf_node.h"

#include "dtensor/call/accumulate.h"
#include "dtensor/redistribution/implicit.h"

namespace weft {

DTensors LeafNode::Backward(MeshContext& context, absl::Span<const DTensor> gradients) {
  const PurposeGuard purpose(context.state(), Purpose::kGrad);
  const NoImplicitChecksGuard planned(context.state());
  Accumulate(gradient_, gradients[0].Redistribute(layout_));
  return {};
}

}  // namespace weft
