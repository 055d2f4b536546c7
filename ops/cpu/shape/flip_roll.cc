#include "ops/shape/flip_roll.h"

#include "ops/cpu/spans/dim_maps.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

void Flip(const KernelCall<FlipAttributes, NoScalars>& call) {
  const ShardBox& x = call.input_boxes[0];
  std::vector<DimMap> maps(x.shape.ndim());
  for (int dim : call.attributes().dims) {
    const int64_t last = x.global_shape[dim] - 1;
    maps[dim] = MakeDimMap(x, call.output_boxes[0], dim, [&](int64_t i) { return last - i; });
  }
  CopyByMaps(call.context, call.inputs[0], call.outputs[0], maps);
}

void Roll(const KernelCall<RollAttributes, NoScalars>& call) {
  const RollAttributes& a = call.attributes();
  const ShardBox& x = call.input_boxes[0];
  const int64_t extent = x.global_shape[a.dim];
  if (extent == 0) return;
  const int64_t shift = (a.shift % extent + extent) % extent;
  std::vector<DimMap> maps(x.shape.ndim());
  maps[a.dim] = MakeDimMap(x, call.output_boxes[0], a.dim,
                           [&](int64_t i) { return i >= shift ? i - shift : i - shift + extent; });
  CopyByMaps(call.context, call.inputs[0], call.outputs[0], maps);
}

const RegisterKernel kRegisterFlip(kFlip, DeviceType::kCpu, Flip);
const RegisterKernel kRegisterRoll(kRoll, DeviceType::kCpu, Roll);

}  // namespace
}  // namespace weft
