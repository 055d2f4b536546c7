#ifndef WEFT_EXAMPLES_GPT_PLAN_H_
#define WEFT_EXAMPLES_GPT_PLAN_H_

#include <string>
#include <vector>

#include "dtensor/nn/gpt.h"
#include "mesh/device_mesh.h"
#include "parallel/plan.h"

namespace weft {

// What axis `dp` does to a GPT.
enum class DataPlan { kDdp, kFsdp };

// The plan that train_gpt uses on a mesh: Megatron-style tensor parallelism on axis "tp" (heads, hidden
// features, vocabulary) and data parallelism on axis "dp", each where the mesh has the axis. With
// `sequence_parallel`, activations between the sharded products are split over the sequence on "tp". Errors:
// InvalidArgument for an axis of another name, kFsdp without "dp", or sequence_parallel without "tp".
Plan GptPlan(const DeviceMesh& mesh, DataPlan data_plan, bool sequence_parallel);

// The layout of a [b, s] batch under a plan: dim 0 over the axes of its DataParallel and FullyShard entries.
Layout BatchLayout(const DeviceMesh& mesh, const Plan& plan);

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_PLAN_H_
