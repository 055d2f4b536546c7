// Tensor parallelism over input features.

#ifndef WEFT_PARALLEL_STYLES_ROW_PARALLEL_H_
#define WEFT_PARALLEL_STYLES_ROW_PARALLEL_H_

#include "absl/strings/string_view.h"
#include "parallel/style.h"

namespace weft {

// Splits the module's row dims (the contracted input features). Output: summed to Replicate (an all-reduce),
// or to Shard(1) (a reduce-scatter) under sequence parallelism; its gradient is Replicate. A bias stays whole
// and is added once.
// Source: Shoeybi et al., "Megatron-LM", 2019, the operator g.
Style RowParallel(absl::string_view axis, const StyleBorders& borders = {});

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_ROW_PARALLEL_H_
