// Tensor parallelism over output features.

#ifndef WEFT_PARALLEL_STYLES_COLUMN_PARALLEL_H_
#define WEFT_PARALLEL_STYLES_COLUMN_PARALLEL_H_

#include "absl/strings/string_view.h"
#include "parallel/style.h"

namespace weft {

// Splits the module's column dims (output features, heads) over the axis. Input: Replicate, gathered if it
// comes sharded (its gradient goes back as it came); output: as the split product leaves it, sharded on the
// features.
// Source: Shoeybi et al., "Megatron-LM", 2019, the operator f.
Style ColumnParallel(absl::string_view axis, const StyleBorders& borders = {});

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_COLUMN_PARALLEL_H_
