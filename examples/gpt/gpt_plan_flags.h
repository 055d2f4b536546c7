// The flags of train_gpt that say how the model is spread: mesh, plan, pipeline.

#ifndef WEFT_EXAMPLES_GPT_GPT_PLAN_FLAGS_H_
#define WEFT_EXAMPLES_GPT_GPT_PLAN_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/plan.h"
#include "runtime/base/dtype.h"

namespace weft {

// --mesh and --mesh_choices for a world of as many ranks as a launcher has started, or as this machine has cores.
// Errors: InvalidArgument for both flags; as ChooseMesh and ChooseMeshAmong.
DeviceMesh MeshFromFlags(std::optional<int> launched_ranks);

// The same of these values of --mesh and --mesh_choices.
// Errors: as ChooseMesh and ChooseMeshAmong.
DeviceMesh MeshOf(const std::string& mesh, const std::string& choices, std::optional<int> launched_ranks);

// Whether these flags follow the number of ranks, so that some may be left over.
bool MeshFollowsTheWorld();

// What a mesh with an axis pp runs by (--schedule, --chunks); nothing for others.
// Errors: InvalidArgument for a schedule that does not fit the mesh or the microbatches, and for flags of pipelines
//         without such an axis, unless the mesh is one of --mesh_choices.
std::optional<PipelineSchedule> ScheduleFromFlags(const DeviceMesh& mesh, int64_t microbatches);

// Flags that were given and mean nothing on this mesh, each with the reason: "--schedule: the mesh (dp=2) has no axis pp". One of
// --mesh_choices may have such, for the others' sake, and a program tells of them; otherwise they are errors of the functions here.
std::vector<std::string> UnusedFlags(const DeviceMesh& mesh);

// Whether --plan is a file, and a module computes in `dtype` under it.
// Errors: those of the file.
bool PlanFileUses(DType dtype);

// Whether stages are balanced by what segments are measured to take (--segment_costs=measured).
bool MeasuresSegmentCosts();

struct NamedPlan {
  std::string name;  // the flag that asks for it
  Plan plan;
};

// What --plan says, and the flags that go with its names. The first is what runs; the others take less memory, each less than
// the one before it (--recompute=auto).
// Errors: InvalidArgument for flags that do not fit each other, the mesh or the schedule; but for UnusedFlags of --mesh_choices.
std::vector<NamedPlan> PlansFromFlags(const DeviceMesh& mesh,
                                      const std::optional<PipelineSchedule>& schedule);

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_GPT_PLAN_FLAGS_H_
