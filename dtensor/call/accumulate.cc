#include "dtensor/call/accumulate.h"

#include <utility>

#include "dtensor/call/execute.h"
#include "ops/elementwise/cast.h"
#include "ops/elementwise/elementwise.h"

namespace weft {

bool AddInPlace(const DTensor& sum, const DTensor& term) {
  const DTensorImpl& target = *sum.impl();
  const Tensor& place = target.Local();
  const bool is_alone = target.use_count() == 1 && !target.writes && place.buffer()->use_count() == 1 &&
                        place.buffer()->num_bytes() == place.num_bytes() && place.IsContiguous();
  // A call that somebody watches is to be seen as a call.
  if (!is_alone || sum.requires_grad() || term.requires_grad() ||
      target.context->state().call_observer() != nullptr) {
    return false;
  }
  const DTensorRef operands[] = {sum, term};
  const NoAttributes attributes;
  const NoScalars scalars;
  const Execution execution(
      {.op = kAdd, .operands = operands, .attributes = &attributes, .scalars = &scalars});
  const ResolvedCall& plan = execution.plan();
  const bool stays = !plan.strategy.decomposed && !plan.moves_any && plan.output_types[0] == target.type &&
                     plan.strategy.outputs[0] == target.layout;
  if (!stays) return false;
  // The kernel reads every element of `sum` before it writes there.
  execution.RunKernel(absl::MakeConstSpan(&sum, 1));
  place.buffer()->set_copy({});
  return true;
}

void Accumulate(DTensor& sum, DTensor term) {
  if (!sum.defined()) {
    sum = std::move(term);
  } else if (sum.dtype() != term.dtype()) {
    const DType dtype = WiderOf(sum.dtype(), term.dtype());
    const auto widened = [dtype](const DTensor& x) {
      return x.dtype() == dtype ? x : Execute(kCast, {x}, {.dtype = dtype});
    };
    sum = Execute(kAdd, {widened(sum), widened(term)});
  } else if (!AddInPlace(sum, term)) {
    sum = Execute(kAdd, {sum, term});
  }
}

}  // namespace weft
