#ifndef WEFT_DTENSOR_TAPE_REDISTRIBUTE_NODE_H_
#define WEFT_DTENSOR_TAPE_REDISTRIBUTE_NODE_H_

#include "dtensor/dtensor.h"
#include "dtensor/tape/tape_node.h"
#include "mesh/layout.h"

namespace weft {

// A link between a value that was moved and the value that it was, at `source`, which lay as `layout`: the
// identity on values, so only the gradient's layout is a choice (GradientLayout, but for what `options` fix).
IntrusivePtr<TapeNode> MakeRedistributeNode(RankState& state, TapeNode::Edge source, const Layout& layout,
                                            const RedistributeOptions& options = {});

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_REDISTRIBUTE_NODE_H_
