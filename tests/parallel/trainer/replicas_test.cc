// Replicas that drift apart.

#include "parallel/replicas.h"

#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/trainer/trainer_job.h"

namespace weft {
namespace {

// An element of a replica that changes on one rank in step 3 is found at the next comparison, by its name. Not by its last bit
// alone, which the step that lies between may round away.
TEST(ReplicasTest, ReplicasThatDriftAreNamed) {
  for (const auto& [mesh, plan, expected] : std::vector<std::tuple<std::string, DataPlan, std::string>>{
           {"dp=2", DataPlan::kDdp,
            "step 4: parameter 'blocks.0.mlp.up.weight' has other bits on rank 1 than on rank 0"},
           {"dp=2,tp=2", DataPlan::kDdp,
            "step 4: parameter 'blocks.0.mlp.up.weight' has other bits on rank 3 than on rank 1"},
           {"dp=2,tp=2", DataPlan::kFsdp, "no error"}}) {
    const int num_ranks = mesh == "dp=2" ? 2 : 4;
    std::vector<std::string> errors(num_ranks);
    RunRanks(num_ranks, [&](World& world) {
      Job job(world, mesh, plan, /*grad_clip=*/1, /*check_replicas_every=*/2);
      errors[world.rank()] = MessageOf([&] {
        for (int step = 1; step <= 5; ++step) {
          job.Step();
          if (step != 3 || world.rank() != world.size() - 1) continue;
          const Tensor& piece = job.model.blocks[0]->mlp.up.weight.at_rest().ToLocal();
          piece.data<double>()[1] *= 1 + 1e-12;
        }
      });
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, testing::StartsWith(expected)) << mesh;
    }
  }
}

// A moment that differs on one rank shows in its parameter.
TEST(ReplicasTest, AMomentThatDiffersShows) {
  RunRanks(2, [](World& world) {
    Job job(world, "dp=2", DataPlan::kDdp, /*grad_clip=*/1, /*check_replicas_every=*/1);
    job.Step();
    for (const auto& [name, state] : job.adamw->State()) {
      if (name == "ln_f.bias.m" && world.rank() == 1) state.ToLocal().data<double>()[0] += 1;
    }
    EXPECT_THAT(MessageOf([&] { job.Step(); }),
                testing::StartsWith("step 2: parameter 'ln_f.bias' has other bits on rank 1 than on rank 0"));
  });
}

}  // namespace
}  // namespace weft
