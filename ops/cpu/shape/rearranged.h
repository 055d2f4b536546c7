#ifndef WEFT_OPS_CPU_SHAPE_REARRANGED_H_
#define WEFT_OPS_CPU_SHAPE_REARRANGED_H_

#include <vector>

#include "ops/cpu/spans/dim_maps.h"
#include "ops/op/kernel_call.h"
#include "ops/shape/dim_source.h"

namespace weft {

// The call's output from its input, as `r` says; kAbsent where another rank holds an element.
inline void CopyRearranged(const KernelCallBase& call, const Rearrangement& r) {
  const ShardBox& x = call.input_boxes[0];
  std::vector<DimMap> maps(r.sources.size());
  for (int dim = 0; dim < x.shape.ndim(); ++dim) {
    const DimSource& source = r.sources[dim];
    if (!source.is_mapped) continue;
    const int64_t extent = x.global_shape[dim];
    maps[dim] = MakeDimMap(x, call.output_boxes[0], dim, [&](int64_t i) {
      int64_t from = source.factor * i + source.shift;
      if (from < 0) from += source.wrap;
      if (from % source.divisor != 0) return kNowhere;
      from /= source.divisor;
      return from < 0 || from >= extent ? kNowhere : from;
    });
  }
  CopyByMaps(call.context, call.inputs[0], call.outputs[0], maps, r.nowhere);
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_SHAPE_REARRANGED_H_
