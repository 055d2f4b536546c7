#include <vector>

#include "ops/cuda/blocks/mapped_copy.h"
#include "ops/op/kernel.h"
#include "ops/shape/flip_roll.h"

namespace weft {
namespace {

void Flip(const KernelCall<FlipAttributes, NoScalars>& call) {
  const ShardBox& x = call.input_boxes[0];
  std::vector<CudaDimSource> sources(x.shape.ndim());
  for (int dim : call.attributes().dims) {
    sources[dim].is_mapped = true;
    sources[dim].sign = -1;
    sources[dim].shift = x.global_shape[dim] - 1;
  }
  CudaMappedCopy(call, call.inputs[0], x, call.outputs[0], call.output_boxes[0], sources);
}

void Roll(const KernelCall<RollAttributes, NoScalars>& call) {
  const RollAttributes& a = call.attributes();
  const ShardBox& x = call.input_boxes[0];
  const int64_t extent = x.global_shape[a.dim];
  if (extent == 0) return;
  std::vector<CudaDimSource> sources(x.shape.ndim());
  sources[a.dim].is_mapped = true;
  sources[a.dim].shift = -((a.shift % extent + extent) % extent);
  sources[a.dim].wrap = extent;
  CudaMappedCopy(call, call.inputs[0], x, call.outputs[0], call.output_boxes[0], sources);
}

const RegisterKernel kRegisterFlip(kFlip, DeviceType::kCuda, Flip);
const RegisterKernel kRegisterRoll(kRoll, DeviceType::kCuda, Roll);

}  // namespace
}  // namespace weft
