#ifndef WEFT_TESTS_PARALLEL_SCHEDULER_FORWARD_OPERATION_H_
#define WEFT_TESTS_PARALLEL_SCHEDULER_FORWARD_OPERATION_H_

#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/communicator.h"

namespace weft {

// Issues to `inner` what a test's own communicator was given: an operation, or a list of them, of the kinds that data
// parallelism asks for. `Operation` is Communicator's, which only its children can name.
// Errors: InvalidArgument for another kind.
template <class Operation>
Work ForwardOperation(Communicator& inner, const Operation& operation) {
  const CollectiveDescriptor& what = operation.descriptor;
  std::vector<CollectivePart> parts;
  for (const auto& part : operation.parts) {
    const auto& counts = part.descriptor.counts;
    parts.push_back({part.input, part.output, {counts.begin(), counts.end()}});
  }
  if (operation.parts.empty()) {
    parts.push_back({operation.input, operation.output, {what.counts.begin(), what.counts.end()}});
  }
  switch (what.kind) {
    case CollectiveKind::kAllReduce:
      return inner.AllReduceEach(parts, what.op, operation.options);
    case CollectiveKind::kAllGather:
      return inner.AllGatherEach(parts, operation.options);
    case CollectiveKind::kReduceScatter:
      return inner.ReduceScatterEach(parts, what.op, operation.options);
    default:
      ThrowInvalidArgument("data parallelism does not ask for ", what.ToString());
  }
}

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_SCHEDULER_FORWARD_OPERATION_H_
