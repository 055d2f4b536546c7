#include "parallel/parameter_splits.h"

#include <vector>

#include "runtime/base/error.h"

namespace weft {

int ChosenDim(const Shape& shape, absl::Span<const ParameterSplit> splits, const ParameterSplit& split,
              const DeviceMesh& mesh) {
  if (split.dim) return *split.dim;
  WEFT_CHECK(shape.ndim() > 0, "a scalar has no dim to split");
  // Counts chunks, so that no order of nesting matters. An axis of one rank cuts nothing.
  std::vector<int64_t> chunks(shape.ndim(), 1);
  for (const ParameterSplit& other : splits) {
    if (other.dim) chunks[*other.dim] *= mesh.axis_size(other.axis);
  }
  int shared = -1;  // the first that divides, cut by another
  int largest = 0;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    const bool divides = shape[dim] % (chunks[dim] * mesh.axis_size(split.axis)) == 0;
    if (divides && chunks[dim] == 1) return dim;
    if (divides && shared < 0) shared = dim;
    if (shape[dim] * chunks[largest] > shape[largest] * chunks[dim]) largest = dim;
  }
  return shared >= 0 ? shared : largest;
}

ParameterLayouts LayoutsOf(const Shape& shape, absl::Span<const ParameterSplit> splits,
                           const DeviceMesh& mesh) {
  std::vector<ParameterSplit> placed(splits.begin(), splits.end());
  for (ParameterSplit& split : placed) split.dim = ChosenDim(shape, placed, split, mesh);
  const auto layout_of = [&](bool SplitColumns::*column) {
    Layout layout(shape.ndim(), mesh.num_axes());
    for (const bool at_rest : {true, false}) {
      for (const ParameterSplit& split : placed) {
        if (split.columns.at_rest != at_rest || !(split.columns.*column)) continue;
        layout = layout.WithShard(split.axis, *split.dim);
      }
    }
    return layout;
  };
  return {
      .at_rest = layout_of(&SplitColumns::at_rest),
      .compute = layout_of(&SplitColumns::compute),
      .gradient = layout_of(&SplitColumns::gradient),
      .state = layout_of(&SplitColumns::state),
  };
}

}  // namespace weft
