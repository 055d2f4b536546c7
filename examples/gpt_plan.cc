#include "examples/gpt_plan.h"

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

}  // namespace

Plan GptPlan(const DeviceMesh& mesh, DataPlan data_plan, bool sequence_parallel) {
  for (const MeshAxis& axis : mesh.axes()) {
    WEFT_REQUIRE(axis.name == "dp" || axis.name == "tp", "mesh axis '", axis.name,
                 "' means nothing to this plan: expected dp or tp, or a plan of your own (--plan=FILE.json)");
  }
  std::vector<PlanEntry> entries;
  if (mesh.FindAxis("tp") >= 0) {
    entries = TensorParallelEntries(sequence_parallel);
  } else {
    WEFT_REQUIRE(!sequence_parallel, "sequence_parallel needs an axis 'tp'; the mesh is '", mesh.ToString(),
                 "'");
  }
  WEFT_REQUIRE(data_plan != DataPlan::kFsdp || mesh.FindAxis("dp") >= 0,
               "plan fsdp needs an axis 'dp'; the mesh is '", mesh.ToString(), "'");
  if (mesh.FindAxis("dp") >= 0) {
    if (data_plan == DataPlan::kDdp) {
      entries.push_back({"", DataParallel("dp")});
    } else {
      entries.push_back({"blocks.*", FullyShard("dp")});
      entries.push_back({"", FullyShard("dp")});
    }
  }
  return Plan(std::move(entries));
}

Layout BatchLayout(const DeviceMesh& mesh, const Plan& plan) {
  Layout layout(/*ndim=*/2, mesh.num_axes());
  for (const PlanEntry& entry : plan.entries()) {
    const Style::Kind kind = entry.style.kind;
    if (kind != Style::Kind::kDataParallel && kind != Style::Kind::kFullyShard) continue;
    const int axis = mesh.AxisIndex(entry.style.axis);
    if (!layout.IsShard(axis)) layout = layout.WithShard(axis, /*dim=*/0);
  }
  return layout;
}

}  // namespace weft
