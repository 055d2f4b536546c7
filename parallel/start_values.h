// Ranks that hold the same piece of a parameter or a buffer begin with the same values: compared, or taken from one of them.

#ifndef WEFT_PARALLEL_START_VALUES_H_
#define WEFT_PARALLEL_START_VALUES_H_

#include <cstdint>

#include "absl/types/span.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/nn/model_stages.h"
#include "dtensor/nn/module_buffer.h"
#include "dtensor/nn/parameter.h"
#include "dtensor/nn/segmented_module.h"

namespace weft {

// What becomes of first values that replicas may not agree on: ranks with other seeds, or on other machines.
enum class StartValues : uint8_t {
  kCompare,    // an error names the parameter or buffer and the ranks
  kBroadcast,  // all replicas take those of the first
  kTrust,      // nothing is checked
};

// Holds replicas to the same bits at rest. Replicas of a piece are the ranks that differ along axes that do not
// split the parameter at rest; where all axes do (FullyShard alone), there is nothing to agree on.
//
// Cost:    kCompare: each rank reads its pieces once, and one all-reduce over the mesh of 16 bytes per piece of each
//          parameter that has replicas, under purpose `metric`. kBroadcast: one broadcast per such parameter, under
//          purpose `param`.
// Errors:  FailedPrecondition, the same on every rank, if values are compared and differ.
// Threads: every rank of the mesh calls it alike.
void AgreeOnStartValues(MeshContext& context, absl::Span<Parameter* const> parameters,
                        absl::Span<ModuleBuffer* const> buffers, StartValues values);

// The same where each rank of the model has a part of it, a stage or one of those of On: `whole` is of all ranks, `part` of those
// that have this one's. A difference in any part is told on every rank, so that none waits in a step for those that have ended.
//
// Cost:    kCompare: besides, an all-gather over `whole` of what is wrong, as text, under purpose `metric`.
// Errors:  FailedPrecondition, the same on every rank of `whole`.
// Threads: every rank of the model calls it alike.
void AgreeOnStartValues(MeshContext& whole, MeshContext& part, absl::Span<Parameter* const> parameters,
                        absl::Span<ModuleBuffer* const> buffers, StartValues values);

// The same of what stages of a pipeline have in common, over the ranks of these stages: parameters, since each stage has
// buffers of its own. kBroadcast: all take the values of the first of these stages, after AgreeOnStartValues, which knows the
// replicas of one stage alone. kCompare: before it.
//
// Cost:    kCompare: as CompareAcrossStages, of parameters that several stages have; kBroadcast: one broadcast for each of
//          them along the pipeline's axis, under purpose `param`.
// Errors:  as AgreeOnStartValues.
// Threads: every rank of the model calls it alike.
void AgreeAcrossStages(SegmentedModule& model, const ModelStages& stages, StartValues values);

}  // namespace weft

#endif  // WEFT_PARALLEL_START_VALUES_H_
