// Data parallelism whose parameters are whole: DDP, ZeRO-1, ZeRO-2.

#ifndef WEFT_PARALLEL_STYLES_DATA_PARALLEL_H_
#define WEFT_PARALLEL_STYLES_DATA_PARALLEL_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "parallel/style.h"

namespace weft {

struct DataParallelOptions {
  std::optional<Placement> input = std::nullopt;
  std::optional<Placement> output = std::nullopt;
  bool shard_state = false;  // ZeRO-1: gradients at rest and optimizer state lie split
  bool shard_gradient =
      false;  // ZeRO-2: gradients are reduced with each microbatch, too; implies shard_state
};

// Splits the module's input over the batch, dim 0; parameters are whole, their gradients summed (DDP). With
// options, what a step keeps beside the parameters lies split, over the dim that FullyShard would choose. A
// parameter belongs to the innermost entry of the axis.
// Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
Style DataParallel(absl::string_view axis, const DataParallelOptions& options = {});

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_DATA_PARALLEL_H_
