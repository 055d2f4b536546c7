#ifndef WEFT_DTENSOR_REDISTRIBUTION_PREPARED_STEP_H_
#define WEFT_DTENSOR_REDISTRIBUTION_PREPARED_STEP_H_

#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "mesh/redistribution/lowering.h"
#include "runtime/base/reduce_op.h"
#include "runtime/comm/communicator.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Work on this rank's own memory.
struct LocalWork {
  enum class Kind : uint8_t { kCopy, kFill };
  Kind kind = Kind::kCopy;
  Tensor from = {};  // of a copy
  Tensor to;
  double value = 0;  // of a fill
};
using LocalWorks = absl::InlinedVector<LocalWork, 1>;

// In their order.
// Threads: any that has the memory to itself.
void RunLocalWorks(const LocalWorks& works);

// One rank's part in one step of a redistribution, ready to run on any thread: every buffer is allocated,
// every message and copy named. Work `before`; the collective, from `input` to `output` (flat, both
// undefined where the step sends nothing) or `sends` and `receives`; work `after`; then `result` holds the
// step's piece. Messages are packed only where a part of a piece does not lie in one run.
struct PreparedStep {
  LocalWorks before;
  Tensor input;
  Tensor output;
  std::vector<Message> sends;
  std::vector<Message> receives;
  LocalWorks after;
  Tensor result;
};

// The result of a step that slices: a view, or an empty tensor.
Tensor SliceOf(const LoweredStep& step, const Tensor& local, const std::shared_ptr<Allocator>& allocator);

// Prepares `step` on the piece `local`, whose elements need not be there yet. The result lies in `into`, if
// that is defined: a contiguous tensor of the step's result, which may be `local` itself where the step
// reduces.
PreparedStep PrepareStep(const LoweredStep& step, const Tensor& local, const Tensor& into,
                         const std::shared_ptr<Allocator>& allocator);

// The same for a region exchange, between whatever pieces. Either may be undefined where it is not touched.
PreparedStep PrepareExchange(const LoweredExchange& exchange, const Tensor& input, const Tensor& output,
                             const std::shared_ptr<Allocator>& allocator);

// Issues the collective of a step, blocking unless the options say async.
Work IssueStep(Communicator& group, const LoweredStep& step, const PreparedStep& prepared,
               const CommOptions& options);

// Whether steps of this kind, over one group, by one op and in one dtype, can be one call: all-gathers, reduce-scatters and
// all-reduces.
bool Merges(StepKind kind);

// The collective of a step of such a kind.
CollectivePart PartOf(const LoweredStep& step, PreparedStep&& prepared);

// Issues those of steps that merge with `first`, as one call.
Work IssueParts(Communicator& group, const LoweredStep& first, absl::Span<const CollectivePart> parts,
                const CommOptions& options);

// The part of a tensor that `region` names, as a view.
Tensor ViewOf(const Tensor& tensor, const Region& region);

}  // namespace weft

#endif  // WEFT_DTENSOR_REDISTRIBUTION_PREPARED_STEP_H_
