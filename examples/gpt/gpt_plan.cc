#include "examples/gpt/gpt_plan.h"

#include <utility>

#include "runtime/base/error.h"

namespace weft {
namespace {

std::vector<PlanEntry> TensorParallelEntries(bool sequence_parallel) {
  // Under sequence parallelism the residual stream is split over the sequence, dim 1, between the products.
  StyleBorders residual;
  if (sequence_parallel) residual.output = Shard(1);
  std::vector<PlanEntry> entries = {
      {"wte", VocabParallel("tp", residual)},
      {"blocks.*.attn.qkv", ColumnParallel("tp")},
      {"blocks.*.attn.proj", RowParallel("tp", residual)},
      {"blocks.*.mlp.up", ColumnParallel("tp")},
      {"blocks.*.mlp.down", RowParallel("tp", residual)},
      {"head", ColumnParallel("tp")},
  };
  if (sequence_parallel) {
    for (const char* norm : {"blocks.*.ln_1", "blocks.*.ln_2", "ln_f"}) {
      entries.push_back({norm, SequenceParallel("tp")});
    }
  }
  return entries;
}

constexpr DataPlan kDataPlans[] = {DataPlan::kDdp, DataPlan::kZero1, DataPlan::kZero2, DataPlan::kFsdp,
                                   DataPlan::kHsdp};

// The rows of the table in docs/data_parallel.md. The root's unit, too, stays where the blocks' do; it never rests in
// smaller groups.
std::vector<PlanEntry> DataEntries(DataPlan plan, const FullyShardOptions& blocks) {
  const FullyShardOptions root = {.reshard = blocks.reshard};
  switch (plan) {
    case DataPlan::kDdp:
      return {{"", DataParallel("dp")}};
    case DataPlan::kZero1:
      return {{"", DataParallel("dp", {.shard_state = true})}};
    case DataPlan::kZero2:
      return {{"", DataParallel("dp", {.shard_gradient = true})}};
    case DataPlan::kFsdp:
      return {{"blocks.*", FullyShard("dp", blocks)}, {"", FullyShard("dp", root)}};
    case DataPlan::kHsdp:
      return {{"blocks.*", FullyShard("shard", blocks)},
              {"", FullyShard("shard", root)},
              {"", DataParallel("replica")}};
  }
  return {};
}

}  // namespace

absl::string_view DataPlanName(DataPlan plan) {
  switch (plan) {
    case DataPlan::kDdp:
      return "ddp";
    case DataPlan::kZero1:
      return "zero1";
    case DataPlan::kZero2:
      return "zero2";
    case DataPlan::kFsdp:
      return "fsdp";
    case DataPlan::kHsdp:
      return "hsdp";
  }
  return "?";
}

std::optional<DataPlan> ParseDataPlan(absl::string_view name) {
  for (const DataPlan plan : kDataPlans) {
    if (DataPlanName(plan) == name) return plan;
  }
  return std::nullopt;
}

Plan GptPlan(const DeviceMesh& mesh, DataPlan data_plan, bool sequence_parallel,
             const FullyShardOptions& blocks, const std::optional<PipelineOptions>& pipeline) {
  const bool is_hsdp = data_plan == DataPlan::kHsdp;
  for (const MeshAxis& axis : mesh.axes()) {
    const bool is_known = axis.name == "tp" || axis.name == "pp" ||
                          (is_hsdp ? axis.name == "replica" || axis.name == "shard" : axis.name == "dp");
    WEFT_REQUIRE(is_known, "mesh axis '", axis.name, "' means nothing to plan ", DataPlanName(data_plan),
                 ": expected ", is_hsdp ? "replica, shard" : "dp",
                 ", tp or pp, or a plan of your own (--plan=FILE.json)");
  }
  WEFT_REQUIRE(pipeline || mesh.FindAxis("pp") < 0, "plan ", DataPlanName(data_plan), ": the mesh '",
               mesh.ToString(), "' has an axis pp, and nothing says how its stages lie");
  std::vector<PlanEntry> entries;
  if (mesh.FindAxis("tp") >= 0) {
    entries = TensorParallelEntries(sequence_parallel);
  } else {
    WEFT_REQUIRE(!sequence_parallel, "sequence_parallel needs an axis 'tp'; the mesh is '", mesh.ToString(),
                 "'");
  }
  const bool has_axes =
      is_hsdp ? mesh.FindAxis("replica") >= 0 && mesh.FindAxis("shard") >= 0 : mesh.FindAxis("dp") >= 0;
  WEFT_REQUIRE(has_axes || data_plan == DataPlan::kDdp, "plan ", DataPlanName(data_plan), " needs ",
               is_hsdp ? "axes 'replica' and 'shard'" : "an axis 'dp'", "; the mesh is '", mesh.ToString(),
               "'");
  if (pipeline) entries.push_back({"blocks.*", Pipeline("pp", *pipeline)});
  if (has_axes) {
    for (PlanEntry& entry : DataEntries(data_plan, blocks)) entries.push_back(std::move(entry));
  }
  return Plan(std::move(entries));
}

Layout BatchLayout(const DeviceMesh& mesh, const Plan& plan) {
  Layout layout(/*ndim=*/2, mesh.num_axes());
  for (const PlanEntry& entry : plan.entries()) {
    const StyleRules& rules = FindStyle(entry.style.name);
    if (rules.reach != StyleReach::kBelow || rules.pins == nullptr) continue;
    if (rules.pins(entry.style, /*is_root=*/true).input != Placement(Shard(0))) continue;
    const int axis = mesh.AxisIndex(entry.style.axis);
    if (!layout.IsShard(axis)) layout = layout.WithShard(axis, /*dim=*/0);
  }
  return layout;
}

}  // namespace weft
