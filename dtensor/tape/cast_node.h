#ifndef WEFT_DTENSOR_TAPE_CAST_NODE_H_
#define WEFT_DTENSOR_TAPE_CAST_NODE_H_

#include "dtensor/tape/tape_node.h"
#include "runtime/base/dtype.h"

namespace weft {

// A link between a parameter's copy of another dtype and the parameter: the gradient of each use of the copy
// is cast to `dtype`, and then they are summed and reduced.
IntrusivePtr<TapeNode> MakeCastNode(RankState& state, IntrusivePtr<TapeNode> source, DType dtype);

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_CAST_NODE_H_
