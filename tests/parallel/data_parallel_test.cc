// Every plan of data parallelism trains the GPT as one rank does: the same losses, gradients and norms within
// rounding, whatever the mesh, the microbatches and the optimizer; and the schedule changes no bit.

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_join.h"
#include "dtensor/nn/gpt.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

// The plans of docs/data_parallel.md over the axes that the mesh has.
Plan PlanOf(const std::string& name, const DeviceMesh& mesh) {
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

struct DataCase {
  std::string plan;
  std::string mesh;
  int64_t microbatches = 1;
  TrainingRun::Optimizer optimizer = TrainingRun::Optimizer::kSgd;
  int64_t batch = 4;
  int64_t steps = 2;
};

std::ostream& operator<<(std::ostream& out, const DataCase& c) {
  return out << c.plan << " on " << c.mesh << ", " << c.microbatches << " microbatches, "
             << (c.optimizer == TrainingRun::Optimizer::kSgd ? "SGD" : "AdamW") << ", batch " << c.batch
             << ", " << c.steps << " steps";
}

TrainingRun RunOf(const DataCase& c, const std::string& mesh) {
  TrainingRun run;
  run.make_model = MakeGpt(SmallGptConfig());
  run.mesh = DeviceMesh::Parse(mesh);
  if (!mesh.empty()) run.plan = PlanOf(c.plan, run.mesh);
  run.microbatches = c.microbatches;
  run.optimizer = c.optimizer;
  run.batch = c.batch;
  run.steps = c.steps;
  for (int64_t step = 1; step <= c.steps; ++step) {
    if (step <= 2 || step == c.steps) run.gradient_steps.push_back(step);
  }
  return run;
}

class DataParallelTest : public testing::TestWithParam<DataCase> {};

// The reference is the whole batch at once on one rank: microbatches are held to it too.
TEST_P(DataParallelTest, EqualsOneRank) {
  const DataCase& c = GetParam();
  DataCase whole = c;
  whole.microbatches = 1;
  static std::map<std::tuple<TrainingRun::Optimizer, int64_t, int64_t>, TrainingResult> references;
  const auto [reference, is_new] = references.try_emplace({c.optimizer, c.batch, c.steps});
  if (is_new) reference->second = Train(RunOf(whole, ""));
  const TrainingResult result = Train(RunOf(c, c.mesh));
  RecordProperty("deviation", DeviationSummary(reference->second, result));
  const std::vector<std::string> differences = Differences(reference->second, result, kF64Tolerance);
  EXPECT_TRUE(differences.empty()) << c << ": " << differences.size() << " differences:\n"
                                   << absl::StrJoin(differences, "\n");
}

constexpr auto kAdamW = TrainingRun::Optimizer::kAdamW;
constexpr auto kSgd = TrainingRun::Optimizer::kSgd;

// Every pair of {plan, mesh, microbatches, optimizer} that can be; one case of 50 steps per family.
INSTANTIATE_TEST_SUITE_P(
    Pairs, DataParallelTest,
    testing::Values(DataCase{"ddp", "dp=2", 3, kAdamW}, DataCase{"ddp", "dp=3", 1, kSgd, 5},
                    DataCase{"ddp", "dp=2,tp=2", 3, kSgd}, DataCase{"ddp", "dp=3", 3, kAdamW, 5, 50},
                    DataCase{"zero1", "dp=2", 1, kSgd}, DataCase{"zero1", "dp=3", 3, kAdamW, 5},
                    DataCase{"zero1", "dp=2,tp=2", 1, kAdamW}, DataCase{"zero1", "dp=2", 3, kAdamW, 4, 50},
                    DataCase{"zero2", "dp=2", 3, kSgd}, DataCase{"zero2", "dp=3", 1, kAdamW, 5},
                    DataCase{"zero2", "dp=2,tp=2", 3, kAdamW}, DataCase{"zero2", "dp=3", 3, kAdamW, 5, 50},
                    DataCase{"fsdp", "dp=2", 1, kAdamW}, DataCase{"fsdp", "dp=3", 3, kSgd, 5},
                    DataCase{"fsdp", "dp=2,tp=2", 3, kAdamW}, DataCase{"fsdp", "dp=3", 3, kAdamW, 5, 50},
                    DataCase{"fsdp_never", "dp=2", 3, kAdamW}, DataCase{"fsdp_rest", "dp=4", 3, kAdamW, 5},
                    DataCase{"hsdp", "replica=2,shard=2", 1, kAdamW},
                    DataCase{"hsdp", "replica=2,shard=2", 3, kSgd, 5},
                    DataCase{"hsdp", "replica=2,shard=2", 3, kAdamW, 5, 50}));

// Bucket sizes, prefetch and overlap: the bits of losses, norms and gradients stay.
TEST(DataParallelScheduleTest, ChangesNoBit) {
  for (const std::string plan : {"ddp", "zero1", "zero2", "fsdp", "hsdp"}) {
    std::optional<TrainingResult> first;
    for (const SchedulerOptions& options :
         {SchedulerOptions{}, SchedulerOptions{.bucket_mb = 0.01},
          SchedulerOptions{.bucket_mb = 1000, .prefetch = 0}, SchedulerOptions{.prefetch = 3},
          SchedulerOptions{.overlap = false},
          SchedulerOptions{.bucket_mb = 0.05, .overlap = false, .find_unused = true}}) {
      const std::string mesh = plan == "hsdp" ? "replica=2,shard=2" : "dp=3";
      TrainingRun run = RunOf(
          {.plan = plan, .mesh = mesh, .microbatches = 2, .optimizer = kAdamW, .batch = 5, .steps = 3}, mesh);
      run.plan.set_scheduler(options);
      const TrainingResult result = Train(run);
      if (!first) first = result;
      EXPECT_EQ(result.losses, first->losses) << plan;
      EXPECT_EQ(result.grad_norms, first->grad_norms) << plan;
      EXPECT_EQ(result.gradients, first->gradients) << plan;
    }
  }
}

// Units that rest in smaller groups between forward and backward are gathered of the same elements.
TEST(DataParallelScheduleTest, RestingInSmallerGroupsChangesNoBit) {
  for (const std::string mesh : {"dp=4", "dp=4,tp=2"}) {
    std::optional<TrainingResult> first;
    for (const std::string plan : {"fsdp", "fsdp_rest"}) {
      for (const SchedulerOptions& options :
           {SchedulerOptions{}, SchedulerOptions{.prefetch = 0, .overlap = false}}) {
        TrainingRun run =
            RunOf({.plan = plan, .mesh = mesh, .microbatches = 2, .optimizer = kAdamW, .batch = 5}, mesh);
        run.plan.set_scheduler(options);
        const TrainingResult result = Train(run);
        if (!first) first = result;
        EXPECT_EQ(result.losses, first->losses) << plan << " on " << mesh;
        EXPECT_EQ(result.gradients, first->gradients) << plan << " on " << mesh;
      }
    }
  }
}

}  // namespace
}  // namespace weft
