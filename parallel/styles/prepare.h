// Where the tensors that cross a module's border lie, and nothing else.

#ifndef WEFT_PARALLEL_STYLES_PREPARE_H_
#define WEFT_PARALLEL_STYLES_PREPARE_H_

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "parallel/style.h"

namespace weft {

// Brings what the module is given, or gives, to a placement along the axis; the gradient goes back to where the tensor
// came from. Of a module with several inputs or outputs the list has them in order: one that is not given is left as it
// is, as are those behind the list. At most 4. Without parameters of its own: beside any other style of the axis, whose pins of
// the same tensor go before it in plan order; the later wins.
//
//   {"attn.core", PrepareInput("tp", {Shard(2), Shard(2), std::nullopt})}     q and k by heads, the mask as it comes
//   {"head", PrepareOutput("tp", {Replicate()})}
//
// Source: torch.distributed.tensor.parallel's PrepareModuleInput and PrepareModuleOutput, their desired layouts; what a
//         tensor comes as it says itself.
Style PrepareInput(absl::string_view axis, const std::vector<std::optional<Placement>>& placements);
Style PrepareOutput(absl::string_view axis, const std::vector<std::optional<Placement>>& placements);

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_PREPARE_H_
