// Gradients that a rank of a pipeline has but a part of.

#ifndef WEFT_PARALLEL_SCHEDULER_STAGE_TERM_H_
#define WEFT_PARALLEL_SCHEDULER_STAGE_TERM_H_

#include <memory>

#include "dtensor/nn/parameter.h"
#include "dtensor/tape/gradient_sink.h"
#include "dtensor/tape/leaf_node.h"
#include "runtime/base/intrusive_ptr.h"

namespace weft {

// A parameter that several stages have. What passes bring of its gradient on one rank is a term: it rests in `leaf`, and the
// parameter's own leaf, with all that hangs on it, gets the sum over the stages alone.
struct StageTerm {
  Parameter* parameter = nullptr;
  IntrusivePtr<LeafNode> leaf = nullptr;  // on no tape; its gradient lies where and as the parameter's does
};

// `parameter` has a value.
StageTerm MakeStageTerm(Parameter& parameter);

// Brings to rest in the term what passes deliver, where no ranks have to sum it before.
std::shared_ptr<GradientSink> SinkInto(const StageTerm& term);

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_STAGE_TERM_H_
