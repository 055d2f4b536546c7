// How the entries of a plan split one parameter, and the four layouts that follow from it.

#ifndef WEFT_PARALLEL_PARAMETER_SPLITS_H_
#define WEFT_PARALLEL_PARAMETER_SPLITS_H_

#include <optional>

#include "absl/types/span.h"
#include "dtensor/nn/parameter.h"
#include "mesh/device_mesh.h"
#include "runtime/tensor/shape.h"

namespace weft {

// Which of a parameter's four layouts a split is in.
struct SplitColumns {
  bool at_rest = false;
  bool compute = false;
  bool gradient = false;
  bool state = false;

  static SplitColumns All() { return {.at_rest = true, .compute = true, .gradient = true, .state = true}; }
  bool any() const { return at_rest || compute || gradient || state; }
  bool operator==(const SplitColumns&) const = default;
};

// One entry's split of a parameter over one axis.
struct ParameterSplit {
  int axis = 0;
  std::optional<int> dim = std::nullopt;  // not given: chosen when all of the parameter's splits are known
  SplitColumns columns = {};

  bool operator==(const ParameterSplit&) const = default;
};

// The dim over which `split`, one of `splits`, cuts a parameter of this shape: as it says. Otherwise, of what the
// others leave of each dim:
//
//   the first dim that the axis divides and no other split cuts
//   otherwise the first dim that the axis divides
//   otherwise the largest
//
//   [4, 6] over a=2                    [a, -]
//   [3, 6] over a=2                    [-, a]
//   [4, 6] over a=2 on dim 0, b=2      [a, b]
//   [4, 3] over a=2 on dim 0, b=2      [a.b, -]
//   [2, 3] over a=2 on dim 0, b=2      [a, b]
//
// Errors: Internal for a scalar.
int ChosenDim(const Shape& shape, absl::Span<const ParameterSplit> splits, const ParameterSplit& split,
              const DeviceMesh& mesh);

// The layouts that splits make, in their order, the first outermost. What splits a gradient or state alone lies
// inside of what splits the parameter at rest, so that a rank's state is a part of what it holds.
ParameterLayouts LayoutsOf(const Shape& shape, absl::Span<const ParameterSplit> splits,
                           const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_PARALLEL_PARAMETER_SPLITS_H_
