#include "tests/parallel/data_parallel/data_parallel_cases.h"

#include <map>
#include <tuple>
#include <utility>

#include "dtensor/nn/gpt.h"
#include "parallel/styles.h"

namespace weft {

Plan DataPlanNamed(const std::string& name, const DeviceMesh& mesh) {
  std::vector<PlanEntry> entries;
  if (mesh.FindAxis("tp") >= 0) {
    entries = {{"wte", VocabParallel("tp")},
               {"blocks.*.attn.qkv", ColumnParallel("tp")},
               {"blocks.*.attn.proj", RowParallel("tp")},
               {"blocks.*.mlp.up", ColumnParallel("tp")},
               {"blocks.*.mlp.down", RowParallel("tp")},
               {"head", ColumnParallel("tp")}};
  }
  if (name == "ddp") {
    entries.push_back({"", DataParallel("dp")});
  } else if (name == "zero1") {
    entries.push_back({"", DataParallel("dp", {.shard_state = true})});
  } else if (name == "zero2") {
    entries.push_back({"", DataParallel("dp", {.shard_gradient = true})});
  } else if (name == "fsdp") {
    entries.push_back({"blocks.*", FullyShard("dp")});
    entries.push_back({"", FullyShard("dp")});
  } else if (name == "fsdp_never") {
    entries.push_back({"blocks.*", FullyShard("dp", {.reshard = Reshard::kNever})});
    entries.push_back({"", FullyShard("dp")});
  } else if (name == "fsdp_rest") {
    entries.push_back({"blocks.*", FullyShard("dp", {.reshard_to = 2})});
    entries.push_back({"", FullyShard("dp")});
  } else if (name == "hsdp") {
    entries.push_back({"blocks.*", FullyShard("shard")});
    entries.push_back({"", FullyShard("shard")});
    entries.push_back({"", DataParallel("replica")});
  }
  return Plan(std::move(entries));
}

std::ostream& operator<<(std::ostream& out, const DataCase& c) {
  return out << c.plan << " on " << c.mesh << ", " << c.microbatches << " microbatches, "
             << (c.optimizer == TrainingRun::Optimizer::kSgd ? "SGD" : "AdamW") << ", batch " << c.batch
             << ", " << c.steps << " steps";
}

TrainingRun RunOf(const DataCase& c, const std::string& mesh) {
  TrainingRun run;
  run.make_model = MakeGpt(SmallGptConfig());
  run.mesh = DeviceMesh::Parse(mesh);
  if (!mesh.empty()) run.plan = DataPlanNamed(c.plan, run.mesh);
  run.microbatches = c.microbatches;
  run.optimizer = c.optimizer;
  run.batch = c.batch;
  run.steps = c.steps;
  for (int64_t step = 1; step <= c.steps; ++step) {
    if (step <= 2 || step == c.steps) run.gradient_steps.push_back(step);
  }
  return run;
}

std::vector<std::string> DifferencesFromOneRank(const DataCase& c) {
  DataCase whole = c;
  whole.microbatches = 1;
  static std::map<std::tuple<TrainingRun::Optimizer, int64_t, int64_t>, TrainingResult> references;
  const auto [reference, is_new] = references.try_emplace({c.optimizer, c.batch, c.steps});
  if (is_new) reference->second = Train(RunOf(whole, ""));
  return Differences(reference->second, Train(RunOf(c, c.mesh)), kF64Tolerance);
}

}  // namespace weft
