#include "parallel/compression/sum_levels.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "mesh/shard_math.h"
#include "parallel/compression/compressor_registry.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

int64_t NumRanks(const DeviceMesh& mesh, const AxisList& axes) {
  int64_t count = 1;
  for (const int axis : axes) count *= mesh.axis_size(axis);
  return count;
}

// The axes that split a tensor.
AxisList SplitAxes(const Layout& layout) {
  AxisList axes;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (layout.IsShard(axis)) axes.push_back(axis);
  }
  return axes;
}

bool Has(const AxisList& axes, int axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }

// `layout` with those of the axes split that `like` splits, inside what is split already.
Layout SplitAs(Layout layout, const Layout& like, const AxisList& axes) {
  for (int dim = 0; dim < like.ndim(); ++dim) {
    for (const int axis : like.ShardAxes(dim)) {
      if (Has(axes, axis)) layout = layout.WithShard(axis, dim);
    }
  }
  return layout;
}

// Zero.
DTensor MakeState(MeshContext& context, const CompressedLeaf& leaf, const SumLevel& level,
                  int64_t shared_elements, DType dtype) {
  const DeviceMesh& mesh = context.mesh();
  const bool is_shared = shared_elements >= 0;
  AxisList rows = level.before.PartialAxes();
  if (is_shared) {
    const AxisList terms = std::exchange(rows, SplitAxes(level.before));
    for (const int axis : terms) {
      if (!Has(level.axes, axis)) rows.push_back(axis);  // whose ranks sum other terms
    }
  }
  Shape shape = {NumRanks(mesh, rows)};
  std::vector<AxisPlacement> placements;
  for (const int axis : rows) placements.push_back({mesh.axis_name(axis), Shard(0)});
  if (is_shared) {
    shape.push_back(shared_elements);
  } else {
    for (int dim = 0; dim < level.before.ndim(); ++dim) {
      shape.push_back(leaf.type.shape[dim]);
      for (const int axis : level.before.ShardAxes(dim))
        placements.push_back({mesh.axis_name(axis), Shard(dim + 1)});
    }
  }
  const Layout lies(mesh, shape.ndim(), placements);
  const MemoryKindGuard kind(*context.allocator(), MemoryKind::kState);
  const Tensor piece =
      Tensor::Empty(context.allocator(), dtype, LocalBox(shape, lies, mesh, context.coordinate()).shape);
  FillTensor(piece, 0);
  return DTensor::FromLocal(IntrusivePtr<MeshContext>(&context), piece, lies, shape);
}

// Of one level.
std::vector<CompressionState> MakeStateOfLevel(MeshContext& context, const CompressedLeaf& leaf,
                                               const SumLevel& level, int index, const Compressor& compressor,
                                               DType dtype) {
  const DeviceMesh& mesh = context.mesh();
  const Shape& shape = leaf.type.shape;
  std::vector<CompressionState> made;
  for (const CompressorState& state : compressor.State(LargestPiece(shape, level.before, mesh))) {
    int64_t shared_elements = state.shared_elements;
    if (shared_elements >= 0) {  // uneven pieces may need more than the largest
      for (const int rank : mesh.ranks()) {
        const ShardBox box = LocalBox(shape, level.before, mesh, mesh.CoordinateOf(rank));
        for (const CompressorState& of_rank : compressor.State(box.shape)) {
          if (of_rank.name == state.name)
            shared_elements = std::max(shared_elements, of_rank.shared_elements);
        }
      }
    }
    const bool is_shared = shared_elements >= 0;
    made.push_back({.name = CompressionStateName(leaf, index, state.name),
                    .tensor = MakeState(context, leaf, level, shared_elements, dtype),
                    .is_shared = is_shared});
    if (index == 0 && !is_shared) made.back().of_replicas = CompressionStateName(leaf, 1, state.name);
  }
  return made;
}

}  // namespace

std::vector<SumLevel> SumLevelsOf(const CompressedLeaf& leaf, const DeviceMesh& mesh) {
  AxisList splits, replicas;
  Layout before = leaf.layout;
  for (const int axis : leaf.communication.axes) {
    if (mesh.axis_size(axis) == 1) continue;
    (leaf.layout.IsShard(axis) ? splits : replicas).push_back(axis);
    before = before.WithPartial(axis);
  }
  const CommunicationMethod& method = leaf.communication.method;
  std::vector<SumLevel> levels;
  if (!splits.empty()) {
    const Layout after = SplitAs(before, leaf.layout, splits);
    levels.push_back({method, splits, /*scatters=*/true, before, after});
    before = after;
  }
  if (replicas.empty()) return levels;
  Layout after = before;
  for (const int axis : replicas) after = after.WithReplicate(axis);
  const CompressorRules& rules = FindCompressor(method.name);
  const bool is_second = !splits.empty() && rules.of_replicas != nullptr;
  levels.push_back(
      {is_second ? rules.of_replicas(method) : method, replicas, /*scatters=*/false, before, after});
  return levels;
}

std::string CompressionStateName(const CompressedLeaf& leaf, int index, absl::string_view state) {
  return absl::StrCat("communication.", leaf.path, index > 0 ? ".replicas." : ".", state);
}

std::vector<std::vector<CompressionState>> MakeCompressionState(
    MeshContext& context, const CompressedLeaf& leaf, const std::vector<SumLevel>& levels,
    const std::vector<const Compressor*>& compressors, DType dtype) {
  std::vector<std::vector<CompressionState>> made;
  for (int index = 0; index < std::ssize(levels); ++index) {
    made.push_back(MakeStateOfLevel(context, leaf, levels[index], index, *compressors[index], dtype));
  }
  for (size_t index = 1; index < made.size(); ++index) {
    for (const CompressionState& of_replicas : made[index]) {  // it goes there
      for (CompressionState& state : made[0]) {
        if (state.of_replicas == of_replicas.name) state.of_replicas.clear();
      }
    }
  }
  return made;
}

std::vector<ElementBox> BoxesOf(const MeshContext& context, const CompressedLeaf& leaf, const SumLevel& level,
                                absl::Span<const int> ranks) {
  const DeviceMesh& mesh = context.mesh();
  const ShardBox whole = LocalBox(leaf.type.shape, level.before, mesh, context.coordinate());
  std::vector<ElementBox> boxes;
  for (const int rank : ranks) {
    const ShardBox box = LocalBox(leaf.type.shape, level.after, mesh, mesh.CoordinateOf(rank));
    Shape offset = box.offset;
    for (int dim = 0; dim < offset.ndim(); ++dim) offset[dim] -= whole.offset[dim];
    boxes.push_back(ElementBox(whole.shape, offset, box.shape));
  }
  return boxes;
}

std::string StreamPathOf(const MeshContext& context, const CompressedLeaf& leaf, const SumLevel& level,
                         int index) {
  std::string path = leaf.path;
  if (index > 0) absl::StrAppend(&path, " of replicas");
  for (const int axis : level.before.PartialAxes()) {
    if (!Has(level.axes, axis)) absl::StrAppend(&path, " replica ", context.coordinate()[axis]);
  }
  for (const int axis : SplitAxes(level.before)) {
    if (context.mesh().axis_size(axis) > 1) absl::StrAppend(&path, " part ", context.coordinate()[axis]);
  }
  return path;
}

}  // namespace weft
