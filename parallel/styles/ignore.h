// Parameters that no data-parallel style takes.

#ifndef WEFT_PARALLEL_STYLES_IGNORE_H_
#define WEFT_PARALLEL_STYLES_IGNORE_H_

#include "parallel/style.h"

namespace weft {

// Leaves every parameter below the module out of DataParallel and FullyShard, whatever the axis: it rests whole
// (but for what tensor-parallel styles split) and is in no unit. Its gradient is still summed over the axes that
// split the batch, as the gradient of any whole parameter is, so that ranks stay equal.
//
//   {"head", Ignore()}, {"", FullyShard("dp")}      all but the head rests split
Style Ignore();

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_IGNORE_H_
