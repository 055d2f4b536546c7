#include "dtensor/redistribution/executor.h"

#include <utility>

#include "dtensor/redistribution/prepared_step.h"
#include "runtime/tensor/copy.h"
#include "runtime/trace/span.h"

namespace weft {

void ExchangeRegions(Communicator& group, const Tensor& input, const Tensor& output,
                     const LoweredExchange& exchange, const std::shared_ptr<Allocator>& allocator,
                     const CommOptions& options) {
  const PreparedStep prepared = PrepareExchange(exchange, input, output, allocator);
  RunLocalWorks(prepared.before);
  group.SendRecv(prepared.sends, prepared.receives, options).Wait();
  RunLocalWorks(prepared.after);
}

Tensor RunRedistribution(MeshContext& context, const Tensor& local, const LoweredRedistribution& lowered) {
  Tensor current = local;
  for (const LoweredStep& step : lowered.steps) {
    if (step.kind == StepKind::kSlice) {  // the most frequent, of which there is nothing to prepare
      current = SliceOf(step, current, context.allocator());
      continue;
    }
    const Span span(context.world().tracer(), context.world().rank(), "comm", StepKindName(step.kind));
    PreparedStep prepared = PrepareStep(step, current, /*into=*/Tensor(), context.allocator());
    RunLocalWorks(prepared.before);
    if (Communicates(step.kind)) {
      IssueStep(context.Group(step.axes), step, prepared, {.tag = context.state().tag()}).Wait();
    }
    RunLocalWorks(prepared.after);
    current = std::move(prepared.result);
  }
  const bool is_view = !lowered.steps.empty() && lowered.steps.back().kind == StepKind::kSlice;
  const bool of_an_earlier_step = is_view && current.buffer() != local.buffer();
  return of_an_earlier_step ? CloneTensor(current, context.allocator()) : current;
}

}  // namespace weft
