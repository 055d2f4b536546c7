#ifndef WEFT_OPS_CUDA_SHAPE_REARRANGED_H_
#define WEFT_OPS_CUDA_SHAPE_REARRANGED_H_

#include <vector>

#include "ops/cuda/blocks/mapped_copy.h"
#include "ops/op/kernel_call.h"
#include "ops/shape/dim_source.h"

namespace weft {

// The call's output from its input, as `r` says; kAbsent where another rank holds an element.
inline void CudaCopyRearranged(const KernelCallBase& call, const Rearrangement& r) {
  std::vector<CudaDimSource> sources(r.sources.size());
  for (size_t dim = 0; dim < sources.size(); ++dim) {
    const DimSource& source = r.sources[dim];
    sources[dim].is_mapped = source.is_mapped;
    sources[dim].factor = source.factor;
    sources[dim].shift = source.shift;
    sources[dim].wrap = source.wrap;
    sources[dim].divisor = source.divisor;
  }
  CudaMappedCopy(call, call.inputs[0], call.input_boxes[0], call.outputs[0], call.output_boxes[0], sources,
                 r.nowhere);
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_SHAPE_REARRANGED_H_
