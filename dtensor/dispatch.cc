#include "dtensor/dispatch.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "dtensor/call/resolve_call.h"
#include "dtensor/tape/kept_results.h"
#include "dtensor/tape/op_node.h"
#include "ops/op/kernel.h"
#include "runtime/trace/span.h"

namespace weft {
namespace {

// Calls of one op whose kernel has yet to run, on all of them at once. Not for views.
class CallBatch {
 public:
  CallBatch(const OpDef& op, size_t num_calls) : op_(op) { waiting_.reserve(num_calls); }

  // Takes a call up to its kernel; `outputs` gets what it returns, to be read when Run has run.
  void Add(const ErasedCall& call, DTensors* outputs) {
    auto made = std::make_unique<Waiting>(call, outputs);
    Waiting& waiting = *made;
    Execution& execution = waiting.execution;
    if (execution.is_decomposed()) {
      *outputs = RunRecorded(execution);
      return;
    }
    waiting_.push_back(std::move(made));
    waiting.plan = IntrusivePtr<const ResolvedCall>(&execution.plan());
    waiting.recorded = WantsRecording(call, execution.plan().output_types);
    execution.CheckGuards();
    execution.MoveOperands();
    *outputs = execution.MakeOutputs();
    for (const DTensorRef operand : execution.used()) waiting.inputs.push_back(operand->Local());
    for (const DTensor& output : *outputs) waiting.places.push_back(output.ToLocal());
    for (const Tensor& place : waiting.places) {
      const bool is_first = place.num_elements() == 0 || written_.insert(place.data()).second;
      WEFT_REQUIRE(is_first, op_.name(), ": two of the calls write the same memory; the second is ",
                   call.ToString());
    }
  }

  void Run(BatchKernel kernel) {
    if (waiting_.empty()) return;
    std::vector<KernelCallBase> calls;
    calls.reserve(waiting_.size());
    for (const std::unique_ptr<Waiting>& waiting : waiting_) {
      const ErasedCall& call = waiting->execution.call();
      calls.push_back({call.operands[0]->context->kernel_context(), waiting->inputs,
                       absl::MakeSpan(waiting->places), waiting->plan->operand_boxes,
                       waiting->plan->output_boxes, call.attributes, call.scalars});
    }
    {
      World& world = waiting_[0]->execution.call().operands[0]->context->world();
      const Span span(world.tracer(), world.rank(), "op", op_.name());
      kernel(calls);
    }
    for (const std::unique_ptr<Waiting>& waiting : waiting_) {
      const Execution& execution = waiting->execution;
      execution.Finish(absl::MakeSpan(*waiting->outputs));
      if (waiting->recorded) {
        RecordCall(execution.call(), *waiting->plan, execution.used(), absl::MakeSpan(*waiting->outputs));
      }
    }
  }

 private:
  struct Waiting {
    Waiting(const ErasedCall& call, DTensors* outputs) : execution(call), outputs(outputs) {}

    Execution execution;
    IntrusivePtr<const ResolvedCall> plan;  // which later calls may drive from the cache
    bool recorded = false;
    DTensors* outputs;
    absl::InlinedVector<Tensor, 4> inputs;
    absl::InlinedVector<Tensor, 4> places;
  };

  const OpDef& op_;
  std::vector<std::unique_ptr<Waiting>> waiting_;
  absl::flat_hash_set<const void*> written_;
};

}  // namespace

DTensors CallErased(const ErasedCall& call) {
  if (!call.operands.empty() && call.operands[0].defined()) {
    KeptResults* const kept = call.operands[0]->context->state().kept_results();
    if (kept != nullptr) [[unlikely]]
      return RunInRecomputed(call, *kept);
  }
  Execution execution(call);
  return RunRecorded(execution);
}

std::vector<DTensors> CallEachErased(const OpDef& op, absl::Span<const ErasedEachCall> calls,
                                     const void* attributes) {
  std::vector<DTensors> results(calls.size());
  if (calls.empty()) return results;
  const absl::Span<const DTensorRef> first = calls[0].operands;
  const bool has_context = !first.empty() && first[0].defined();
  const BatchKernel kernel =
      has_context ? FindBatchKernel(op, first[0]->context->allocator()->device().type) : nullptr;
  const bool in_place = *op.in_place() != '\0';
  CallBatch batch(op, calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const ErasedCall call = {
        .op = op, .operands = calls[i].operands, .attributes = attributes, .scalars = calls[i].scalars};
    if (kernel != nullptr) {
      batch.Add(call, &results[i]);
      continue;
    }
    DTensors outputs = CallErased(call);
    // Dropped at once, the next call gets their handles' memory while it is warm.
    if (!in_place) results[i] = std::move(outputs);
  }
  if (kernel != nullptr) batch.Run(kernel);
  if (in_place) results.assign(calls.size(), {});
  return results;
}

}  // namespace weft
