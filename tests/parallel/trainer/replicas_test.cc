// Replicas that drift apart.

#include "parallel/replicas.h"

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "parallel/styles.h"
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

class HalfFrozen : public Module {
 public:
  Linear body{this, "body", 4, 3};
  ModuleBuffer mean{this, "mean", {.shape = {3}}};
  Linear head{this, "head", 3, 2};

 protected:
  DTensor Forward(const DTensor& x) override { return head(body(x) - mean.Value()); }
};

// What rank 0 says of the step after an element of it has changed on rank 1.
std::string AfterDriftOf(const std::function<const DTensor&(HalfFrozen&)>& drifting) {
  std::vector<std::string> errors(2);
  RunRanks(2, [&](World& world) {
    HalfFrozen model;
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), {{"", DataParallel("dp")}},
                                     {.dtype = DType::kF64});
    model.body.set_trainable(false);
    Sgd sgd(model.TrainableParameters(), {});
    Trainer trainer(model, sgd, {.schedule = [](int64_t) { return 0.1; }, .check_replicas_every = 1});
    const auto step = [&] {
      trainer.Step(/*num_tokens=*/4, [&] {
        return Mean(Square(model(Full(context, DType::kF64, {4, 4}, 1))));
      });
    };
    step();
    if (world.rank() == 1) *drifting(model).ToLocal().data<double>() += 1;
    errors[world.rank()] = MessageOf(step);
  });
  EXPECT_EQ(errors[1], errors[0]);
  return errors[0];
}

// The optimizer has neither.
TEST(ReplicasTest, FrozenParametersAndBuffersAreCompared) {
  EXPECT_EQ(
      AfterDriftOf([](HalfFrozen& model) -> const DTensor& { return model.body.weight.at_rest(); }),
      "step 2: parameter 'body.weight' has other bits on rank 1 than on rank 0: replicas have drifted apart");
  EXPECT_EQ(AfterDriftOf([](HalfFrozen& model) -> const DTensor& { return model.mean.Value(); }),
            "step 2: buffer 'mean' has other bits on rank 1 than on rank 0: replicas have drifted apart");
}

class InTwoParts : public Module {
 public:
  Linear first{this, "first", 4, 3};
  Linear second{this, "second", 3, 2};

 protected:
  DTensor Forward(const DTensor& x) override { return second(first(x)); }
};

// Those of the part in which nothing has drifted do not wait for those that have ended.
TEST(ReplicasTest, ADriftWithinAPartIsNamedOnEveryRank) {
  const Plan plan = {{"first", On("gpus", 0, 2)}, {"second", On("gpus", 2, 2)}, {"", DataParallel("gpus")}};
  std::vector<std::string> errors(4);
  RunRanks(4, [&](World& world) {
    InTwoParts model;
    const auto context = Parallelize(model, world, DeviceMesh::Parse("gpus=4"), plan, {.dtype = DType::kF64});
    Sgd sgd(model.AllParameters(), {});
    Trainer trainer(model, sgd, {.schedule = [](int64_t) { return 0.1; }, .check_replicas_every = 1});
    const auto step = [&] {
      trainer.Step(/*num_tokens=*/4, [&] {
        return Mean(Square(model(Full(context, DType::kF64, {4, 4}, 1))));
      });
    };
    step();
    if (world.rank() == 3) *model.second.weight.at_rest().ToLocal().data<double>() += 1;
    errors[world.rank()] = MessageOf(step);
  });
  const std::string expected =
      "step 2: parameter 'second.weight' has other bits on rank 3 than on rank 2: replicas have drifted "
      "apart";
  EXPECT_EQ(errors, std::vector<std::string>(4, expected));
}

}  // namespace
}  // namespace weft
