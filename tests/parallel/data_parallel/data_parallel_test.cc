// Every plan of data parallelism trains the GPT as one rank does: the same losses, gradients and norms within
// rounding, whatever the mesh, the microbatches and the optimizer; and the schedule changes no bit.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/parallel/data_parallel/data_parallel_cases.h"

namespace weft {
namespace {

class DataParallelTest : public testing::TestWithParam<DataCase> {};

TEST_P(DataParallelTest, EqualsOneRank) {
  const std::vector<std::string> differences = DifferencesFromOneRank(GetParam());
  EXPECT_TRUE(differences.empty()) << GetParam() << ": " << differences.size() << " differences:\n"
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

// Bucket sizes, prefetch, overlap and priority between lanes: the bits of losses, norms and gradients stay.
TEST(DataParallelScheduleTest, ChangesNoBit) {
  for (const std::string plan : {"ddp", "zero1", "zero2", "fsdp", "hsdp"}) {
    std::optional<TrainingResult> first;
    for (const SchedulerOptions& options :
         {SchedulerOptions{}, SchedulerOptions{.bucket_mb = 0.01},
          SchedulerOptions{.bucket_mb = 1000, .prefetch = 0}, SchedulerOptions{.prefetch = 3},
          SchedulerOptions{.bucket_mb = 0.01, .lane_priority = true}, SchedulerOptions{.overlap = false},
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
