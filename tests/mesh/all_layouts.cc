#include "tests/mesh/all_layouts.h"

#include <numeric>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "runtime/base/error.h"

namespace weft {

std::vector<Layout> AllLayouts(int ndim, int num_axes, const std::vector<ReduceOp>& ops) {
  std::vector<Placement> choices = {Replicate()};
  for (int dim = 0; dim < ndim; ++dim) choices.push_back(Shard(dim));
  for (ReduceOp op : ops) choices.push_back(Partial(op));
  std::vector<int> order(num_axes);
  std::iota(order.begin(), order.end(), 0);
  absl::flat_hash_set<Layout> seen;
  std::vector<Layout> layouts;
  do {
    std::vector<size_t> choice(num_axes);
    for (bool more = true; more;) {
      try {
        Layout layout(ndim, num_axes);
        for (int axis : order) layout = layout.With(axis, choices[choice[axis]]);
        if (seen.insert(layout).second) layouts.push_back(layout);
      } catch (const Error&) {
        // Partial kinds that do not mix.
      }
      int axis = 0;
      while (axis < num_axes && ++choice[axis] == choices.size()) choice[axis++] = 0;
      more = axis < num_axes;
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return layouts;
}

std::vector<DeviceMesh> AllMeshes(int max_axes, int64_t max_ranks) {
  std::vector<DeviceMesh> meshes;
  std::vector<MeshAxis> axes;
  const auto add = [&](auto&& self, int64_t ranks) -> void {
    if (!axes.empty()) meshes.emplace_back(axes);
    if (static_cast<int>(axes.size()) == max_axes) return;
    for (int64_t size = 2; ranks * size <= max_ranks; ++size) {
      axes.push_back({std::string(1, static_cast<char>('a' + axes.size())), size});
      self(self, ranks * size);
      axes.pop_back();
    }
  };
  add(add, 1);
  return meshes;
}

}  // namespace weft
