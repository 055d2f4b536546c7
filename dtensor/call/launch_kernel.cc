#include "dtensor/call/launch_kernel.h"

#include "runtime/trace/span.h"

namespace weft {

void LaunchKernel(MeshContext& context, const ErasedCall& call, ErasedKernel kernel,
                  const LocalPieces& pieces) {
  if (kernel == nullptr) return;
  Tracer* const tracer = context.world().tracer();
  // Without a tracer nobody measures the name, whose length would have to be counted.
  const Span span(tracer, context.world().rank(), "op", tracer == nullptr ? "" : call.op.name());
  call.op.Invoke(kernel, {.context = context.kernel_context(),
                          .inputs = pieces.inputs,
                          .outputs = pieces.outputs,
                          .input_boxes = pieces.input_boxes,
                          .output_boxes = pieces.output_boxes,
                          .erased_attributes = call.attributes,
                          .erased_scalars = call.scalars});
}

}  // namespace weft
