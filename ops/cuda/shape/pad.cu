#include <vector>

#include "ops/cuda/blocks/mapped_copy.h"
#include "ops/op/kernel.h"
#include "ops/shape/pad.h"

namespace weft {
namespace {

template <class R>
void PadWith(const KernelCall<PadAttributes, R>& call, double value) {
  const PadAttributes& a = call.attributes();
  const ShardBox& x = call.input_boxes[0];
  std::vector<CudaDimSource> sources(x.shape.ndim());
  bool first = true;  // along every padded dim: the one rank that writes what is added
  for (int dim = 0; dim < x.shape.ndim(); ++dim) {
    if (a.before[dim] + a.after[dim] == 0) continue;
    sources[dim].is_mapped = true;
    sources[dim].shift = -a.before[dim];
    first = first && x.offset[dim] == 0;
  }
  CudaMappedCopy(call, call.inputs[0], x, call.outputs[0], call.output_boxes[0], sources,
                 first ? value : kAbsent);
}

void Pad(const KernelCall<PadAttributes, NoScalars>& call) { PadWith(call, 0); }
void PadValue(const KernelCall<PadAttributes, PadScalars>& call) { PadWith(call, call.scalars().value); }

const RegisterKernel kRegister(kPad, DeviceType::kCuda, Pad);
const RegisterKernel kRegisterValue(kPadValue, DeviceType::kCuda, PadValue);

}  // namespace
}  // namespace weft
