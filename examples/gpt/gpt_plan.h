#ifndef WEFT_EXAMPLES_GPT_GPT_PLAN_H_
#define WEFT_EXAMPLES_GPT_GPT_PLAN_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/nn/gpt.h"
#include "mesh/device_mesh.h"
#include "parallel/plan.h"
#include "parallel/styles.h"

namespace weft {

// What the data-parallel axes do to a GPT (docs/data_parallel.md): axis `dp`, or, of kHsdp, `replica` and `shard`.
enum class DataPlan { kDdp, kZero1, kZero2, kFsdp, kHsdp };

// "ddp", "zero1", "zero2", "fsdp", "hsdp".
absl::string_view DataPlanName(DataPlan plan);
// Nothing for any other name.
std::optional<DataPlan> ParseDataPlan(absl::string_view name);

// The plan that train_gpt uses on a mesh: Megatron-style tensor parallelism on axis "tp" (heads, hidden
// features, vocabulary) and data parallelism on axis "dp" (kHsdp: "replica" and "shard"), each where the mesh
// has the axis. With `sequence_parallel`, activations between the sharded products are split over the sequence
// on "tp". `blocks` is what kFsdp and kHsdp say of the blocks; its `reshard` holds for the root's unit, too. `pipeline`
// divides the blocks among the stages of axis "pp"; it is given if the mesh has that axis.
// Errors: InvalidArgument for an axis of another name, a plan that lacks its axes, or sequence_parallel without
//         "tp".
Plan GptPlan(const DeviceMesh& mesh, DataPlan data_plan, bool sequence_parallel,
             const FullyShardOptions& blocks = {}, const std::optional<PipelineOptions>& pipeline = {});

// The layout of a [b, s] batch under a plan: dim 0 over the axes of its DataParallel and FullyShard entries.
Layout BatchLayout(const DeviceMesh& mesh, const Plan& plan);

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_GPT_PLAN_H_
