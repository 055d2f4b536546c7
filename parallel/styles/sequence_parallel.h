// A norm between tensor-parallel products, on split sequences.

#ifndef WEFT_PARALLEL_STYLES_SEQUENCE_PARALLEL_H_
#define WEFT_PARALLEL_STYLES_SEQUENCE_PARALLEL_H_

#include "absl/strings/string_view.h"
#include "parallel/style.h"

namespace weft {

// Runs the module (a norm) on activations that are split over the sequence, dim 1. Its parameters stay whole;
// their gradients are summed over the axis.
// Source: Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022.
Style SequenceParallel(absl::string_view axis, const StyleBorders& borders = {});

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_SEQUENCE_PARALLEL_H_
