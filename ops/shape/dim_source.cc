#include "ops/shape/dim_source.h"

namespace weft {

Rearrangement PadRearrangement(const PadAttributes& a, const ShardBox& x, double value) {
  Rearrangement result = {.sources = std::vector<DimSource>(x.shape.ndim())};
  bool first = true;  // along every padded dim: the one rank that writes what is added
  for (int dim = 0; dim < x.shape.ndim(); ++dim) {
    if (a.before[dim] + a.after[dim] == 0) continue;
    result.sources[dim] = {.is_mapped = true, .shift = -a.before[dim]};
    first = first && x.offset[dim] == 0;
  }
  result.nowhere = first ? value : kAbsent;
  return result;
}

Rearrangement FlipRearrangement(const FlipAttributes& a, const ShardBox& x) {
  Rearrangement result = {.sources = std::vector<DimSource>(x.shape.ndim())};
  for (const int dim : a.dims) {
    result.sources[dim] = {.is_mapped = true, .factor = -1, .shift = x.global_shape[dim] - 1};
  }
  return result;
}

Rearrangement RollRearrangement(const RollAttributes& a, const ShardBox& x) {
  Rearrangement result = {.sources = std::vector<DimSource>(x.shape.ndim())};
  const int64_t extent = x.global_shape[a.dim];
  if (extent == 0) return result;
  result.sources[a.dim] = {
      .is_mapped = true, .shift = -((a.shift % extent + extent) % extent), .wrap = extent};
  return result;
}

Rearrangement SliceGradRearrangement(const SliceGradAttributes& a, const ShardBox& dy) {
  Rearrangement result = {.sources = std::vector<DimSource>(dy.shape.ndim())};
  result.sources[a.dim] = {.is_mapped = true, .shift = -a.start};
  result.nowhere = dy.offset[a.dim] == 0 ? 0 : kAbsent;
  return result;
}

Rearrangement StridedSliceRearrangement(const StridedSliceAttributes& a, const ShardBox& x) {
  Rearrangement result = {.sources = std::vector<DimSource>(x.shape.ndim())};
  result.sources[a.dim] = {.is_mapped = true, .factor = a.step, .shift = a.start};
  return result;
}

Rearrangement StridedSliceGradRearrangement(const StridedSliceGradAttributes& a, const ShardBox& dy) {
  Rearrangement result = {.sources = std::vector<DimSource>(dy.shape.ndim())};
  result.sources[a.dim] = {.is_mapped = true, .shift = -a.start, .divisor = a.step};
  result.nowhere = dy.offset[a.dim] == 0 ? 0 : kAbsent;
  return result;
}

}  // namespace weft
