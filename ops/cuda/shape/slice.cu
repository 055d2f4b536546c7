#include <vector>

#include "ops/cuda/blocks/mapped_copy.h"
#include "ops/op/kernel.h"
#include "ops/shape/slice.h"

namespace weft {
namespace {

void SliceGrad(const KernelCall<SliceGradAttributes, NoScalars>& call) {
  const SliceGradAttributes& a = call.attributes();
  const ShardBox& dy = call.input_boxes[0];
  std::vector<CudaDimSource> sources(dy.shape.ndim());
  sources[a.dim].is_mapped = true;
  sources[a.dim].shift = -a.start;
  // What lies outside the slice the first piece gives.
  CudaMappedCopy(call, call.inputs[0], dy, call.outputs[0], call.output_boxes[0], sources,
                 dy.offset[a.dim] == 0 ? 0 : kAbsent);
}

const RegisterKernel kRegister(kSliceGrad, DeviceType::kCuda, SliceGrad);

}  // namespace
}  // namespace weft
