#include "ops/shape/split.h"

#include "ops/cpu/spans/dim_maps.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

void Split(const KernelCall<SplitAttributes, NoScalars>& call) {
  const SplitAttributes& a = call.attributes();
  int64_t start = 0;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    call.outputs[i] =
        SlicePiece(call.context, call.inputs[0], call.input_boxes[0], call.output_boxes[i], a.dim, start);
    start += a.sizes[i];
  }
}

const RegisterKernel kRegister(kSplit, DeviceType::kCpu, Split);

}  // namespace
}  // namespace weft
