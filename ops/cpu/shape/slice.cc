#include "ops/shape/slice.h"

#include "ops/cpu/spans/dim_maps.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

void Slice(const KernelCall<SliceAttributes, NoScalars>& call) {
  const SliceAttributes& a = call.attributes();
  call.outputs[0] =
      SlicePiece(call.context, call.inputs[0], call.input_boxes[0], call.output_boxes[0], a.dim, a.start);
}

void SliceGrad(const KernelCall<SliceGradAttributes, NoScalars>& call) {
  const SliceGradAttributes& a = call.attributes();
  const ShardBox& dy = call.input_boxes[0];
  const int64_t length = dy.global_shape[a.dim];
  std::vector<DimMap> maps(dy.shape.ndim());
  maps[a.dim] = MakeDimMap(dy, call.output_boxes[0], a.dim, [&](int64_t i) {
    return i < a.start || i >= a.start + length ? kNowhere : i - a.start;
  });
  CopyByMaps(call.context, call.inputs[0], call.outputs[0], maps, IsFirstPiece(dy, a.dim) ? 0 : kAbsent);
}

const RegisterKernel kRegisterSlice(kSlice, DeviceType::kCpu, Slice);
const RegisterKernel kRegisterSliceGrad(kSliceGrad, DeviceType::kCpu, SliceGrad);

}  // namespace
}  // namespace weft
