// Tensor parallelism over the rows of an embedding.

#ifndef WEFT_PARALLEL_STYLES_VOCAB_PARALLEL_H_
#define WEFT_PARALLEL_STYLES_VOCAB_PARALLEL_H_

#include "absl/strings/string_view.h"
#include "parallel/style.h"

namespace weft {

// Splits an embedding's vocabulary: each rank looks up its own rows and the results are summed. Output as
// RowParallel's.
// Source: Shoeybi et al., "Megatron-LM", 2019.
Style VocabParallel(absl::string_view axis, const StyleBorders& borders = {});

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_VOCAB_PARALLEL_H_
