#include "ops/shape/pad.h"

#include "ops/cpu/spans/dim_maps.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

template <class R>
void PadWith(const KernelCall<PadAttributes, R>& call, double value) {
  const PadAttributes& a = call.attributes();
  const ShardBox& x = call.input_boxes[0];
  std::vector<DimMap> maps(x.shape.ndim());
  bool first = true;  // along every padded dim: the one rank that writes what is added
  for (int dim = 0; dim < x.shape.ndim(); ++dim) {
    if (a.before[dim] + a.after[dim] == 0) continue;
    const int64_t end = a.before[dim] + x.global_shape[dim];
    maps[dim] = MakeDimMap(x, call.output_boxes[0], dim, [&](int64_t i) {
      return i < a.before[dim] || i >= end ? kNowhere : i - a.before[dim];
    });
    first = first && IsFirstPiece(x, dim);
  }
  CopyByMaps(call.context, call.inputs[0], call.outputs[0], maps, first ? value : kAbsent);
}

void Pad(const KernelCall<PadAttributes, NoScalars>& call) { PadWith(call, 0); }
void PadValue(const KernelCall<PadAttributes, PadScalars>& call) { PadWith(call, call.scalars().value); }

const RegisterKernel kRegister(kPad, DeviceType::kCpu, Pad);
const RegisterKernel kRegisterValue(kPadValue, DeviceType::kCpu, PadValue);

}  // namespace
}  // namespace weft
