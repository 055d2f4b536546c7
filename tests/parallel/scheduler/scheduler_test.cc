// What a program may do beside one forward and one backward a step, under plans that gather ahead and reduce in
// buckets: use a module twice, skip it, go in another order, evaluate in between, fail, reach other parameters
// on other ranks. Values are those of a plan without any schedule: of one rank.

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/gradient_hook.h"
#include "dtensor/functions.h"
#include "dtensor/optim/sgd.h"
#include "dtensor/redistribute_each.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/tensor_compare.h"
#include "tests/parallel/scheduler/chain.h"
#include "tests/parallel/scheduler/num_calls.h"

namespace weft {
namespace {

struct Step {
  std::vector<int> order = {0, 1, 2, 3};
  bool evaluates = false;  // before it
  bool changes = false;    // a parameter of the root, before it, as loading does
  std::set<int> by_hand = {};
};

struct Outcome {
  std::vector<double> losses;
  std::vector<std::vector<double>> parameters;
  std::vector<std::string> warnings;
};

// Trains by SGD; a parameter that a step does not reach stays.
Outcome Train(const std::string& mesh_text, const Plan& plan, const std::vector<Step>& steps) {
  Outcome outcome;
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    Chain model;
    std::vector<std::string> warnings;
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    context->state().set_warning_sink([&](const std::string& line) { warnings.push_back(line); });
    Sgd optimizer(model.AllParameters(), {});
    Outcome mine;
    const auto loss_of = [&](uint64_t step) {
      context->state().set_step(step);
      const DTensor x = RandomNormal(context, DType::kF64, {5, kDim}, {}, "x");
      return Mean(Square(model(x)));
    };
    uint64_t number = 0;
    for (const Step& step : steps) {
      ++number;
      if (step.evaluates) {
        const NoGradGuard no_grad(context->state());
        model.order = {3, 1};
        mine.losses.push_back(loss_of(100 + number).Item());
      }
      if (step.changes) {
        const NoGradGuard no_grad(context->state());
        model.own.Load(0.5 * model.own.at_rest());
      }
      model.order = step.order;
      model.by_hand = step.by_hand;
      const DTensor loss = loss_of(number);
      Backward(loss);
      mine.losses.push_back(loss.Item());
      optimizer.Step(0.1);
      optimizer.ZeroGrad();
    }
    for (const Parameter* parameter : model.AllParameters()) {
      mine.parameters.push_back(parameter->at_rest().FullTensor().ToVector<double>());
    }
    mine.warnings = warnings;
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

void ExpectSame(const Outcome& expected, const Outcome& actual) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-13) << i;
  ASSERT_EQ(actual.parameters.size(), expected.parameters.size());
  for (size_t i = 0; i < expected.parameters.size(); ++i) {
    for (size_t j = 0; j < expected.parameters[i].size(); ++j) {
      ASSERT_NEAR(actual.parameters[i][j], expected.parameters[i][j], 1e-13)
          << "parameter " << i << " at " << j;
    }
  }
}

class SchedulerTest : public testing::TestWithParam<std::string> {
 protected:
  // On 3 ranks, gathered 0, 1 and 2 units ahead, against one rank.
  void Check(const std::vector<Step>& steps) {
    const Outcome expected = Train("", {}, steps);
    for (const int prefetch : {0, 1, 2}) {
      Plan plan = PlanNamed(GetParam());
      plan.set_scheduler({.bucket_mb = 0.0003, .prefetch = prefetch});
      SCOPED_TRACE(absl::StrCat(GetParam(), ", prefetch ", prefetch));
      ExpectSame(expected, Train("dp=3", plan, steps));
    }
  }
};

TEST_P(SchedulerTest, TheSameStepAgain) { Check({{}, {}, {}, {}}); }

TEST_P(SchedulerTest, AModuleUsedTwice) {
  Check({{{0, 1, 1, 2, 3, 0}}, {{0, 1, 1, 2, 3, 0}}, {{0, 1, 1, 2, 3, 0}}});
}

TEST_P(SchedulerTest, AnotherOrder) { Check({{}, {{3, 2, 1, 0}}, {{2, 0, 3, 1}}, {}}); }

TEST_P(SchedulerTest, ModulesLeftOut) { Check({{{0, 1}}, {{2, 3}}, {{1}}, {}, {{0, 1}}}); }

TEST_P(SchedulerTest, AnEvaluationInBetween) { Check({{}, {.evaluates = true}, {{3, 1, 0, 2}, true}, {}}); }

TEST_P(SchedulerTest, AnotherMethodThanForward) {
  Check({{},
         {.by_hand = {1}},
         {.by_hand = {0, 3}},
         {},
         {.by_hand = {0, 1, 2, 3}},
         {.order = {1, 1, 2}, .by_hand = {1}},
         {}});
}

TEST_P(SchedulerTest, ParametersChangedBetweenSteps) {
  Check({{}, {}, {.changes = true}, {.evaluates = true, .changes = true}, {}});
}

INSTANTIATE_TEST_SUITE_P(Plans, SchedulerTest, testing::Values("ddp", "zero2", "fsdp"),
                         [](const auto& info) { return info.param; });

TEST(SchedulerWarningTest, AUnitGatheredForNothingIsNamedOnce) {
  EXPECT_TRUE(Train("dp=2", PlanNamed("fsdp"), {{}, {}, {}}).warnings.empty());
  // Twice without block 2, and back.
  const std::vector<Step> steps = {{}, {}, {{0, 1, 3}}, {}, {{0, 1, 3}}, {}};
  const Outcome outcome = Train("dp=2", PlanNamed("fsdp"), steps);
  ASSERT_FALSE(outcome.warnings.empty());
  EXPECT_EQ(
      outcome.warnings[0],
      "unit 'blocks.2' was gathered ahead and not used: the program has left the order of its last step; the "
      "gather is dropped");
  const std::set<std::string> different(outcome.warnings.begin(), outcome.warnings.end());
  EXPECT_EQ(different.size(), outcome.warnings.size());
}

// The first unit of a step is gathered when the update before it has been made: not used, if somebody changes it.
TEST(SchedulerWarningTest, AStaleGatherIsNamedOnce) {
  const std::vector<Step> steps = {{}, {}, {.changes = true}, {}, {.changes = true}, {}};
  EXPECT_EQ(
      Train("dp=2", PlanNamed("fsdp"), steps).warnings,
      std::vector<std::string>{"unit '' was gathered ahead and not used: its parameters have been changed "
                               "since; the gather is dropped"});
  Plan none = PlanNamed("fsdp");
  none.set_scheduler({.prefetch = 0});
  EXPECT_TRUE(Train("dp=2", none, steps).warnings.empty());
}

// Two optimizers, each with a part of the root's parameters: gathered when both have changed theirs, once. One that is frozen
// is waited for by nobody.
TEST(SchedulerAheadTest, AUnitIsGatheredWhenAllOfItHasChanged) {
  for (const bool freezes : {false, true}) {
    RunRanks(2, [freezes](World& world) {
      Chain model;
      const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
      const Plan plan = {{"", FullyShard("dp")}};  // one unit
      const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
      if (freezes) model.blocks[0]->weight.set_trainable(false);
      std::vector<Parameter*> all = model.AllParameters();
      Sgd first({all[0]}, {}), second(std::vector<Parameter*>(all.begin() + 1, all.end()), {});
      const auto gathers = [&] { return NumCalls(world, Purpose::kParam); };
      for (int step = 1; step <= 3; ++step) {
        world.ledger().Clear();
        Backward(Mean(Square(model(RandomNormal(context, DType::kF64, {4, kDim}, {}, "x")))));
        EXPECT_EQ(gathers(), step == 1 ? 1 : 0) << "step " << step << ", freezes " << freezes;
        first.Step(0.1);
        EXPECT_EQ(gathers(), step == 1 ? 1 : 0) << "step " << step << ", freezes " << freezes;
        second.Step(0.1);
        EXPECT_EQ(gathers(), step == 1 ? 2 : 1) << "step " << step << ", freezes " << freezes;
        first.ZeroGrad();
        second.ZeroGrad();
      }
    });
  }
}

// A pass that fails leaves nothing behind: the next one has its own gradients.
TEST(SchedulerFailureTest, APassThatFailsIsForgotten) {
  RunRanks(2, [](World& world) {
    Chain model, fresh;
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    const auto context = Parallelize(model, world, mesh, PlanNamed("ddp"), {.dtype = DType::kF64});
    Parallelize(fresh, context, PlanNamed("ddp"), {.dtype = DType::kF64});
    const auto loss_of = [&](Chain& chain) {
      return Mean(Square(chain(RandomNormal(context, DType::kF64, {4, kDim}, {}, "x"))));
    };
    // Its history is used up half-way: the leaves behind it have delivered by then.
    const DTensor y = loss_of(model);
    const DTensor shared = Square(y);
    Backward(shared);
    for (Parameter* parameter : model.AllParameters()) parameter->ClearGrad();
    EXPECT_THROW(Backward(Mul(shared, Sum(model.own.Value()))), Error);
    Backward(loss_of(model));
    Backward(loss_of(fresh));
    for (size_t i = 0; i < model.AllParameters().size(); ++i) {
      EXPECT_TRUE(
          SameBits(model.AllParameters()[i]->grad().ToLocal(), fresh.AllParameters()[i]->grad().ToLocal()))
          << model.AllParameters()[i]->path();
    }
  });
}

// A product by the sum of two parameters, whose gradients are one tensor, and one of its own terms' too.
class Sums : public Module {
 public:
  Parameter a{this, "a", {.shape = {kDim, kDim}, .initializer = Initializer::Normal(0, 1)}};
  Parameter b{this, "b", {.shape = {kDim, kDim}, .initializer = Initializer::Normal(0, 1)}};
  Parameter c{this, "c", {.shape = {kDim, kDim}, .initializer = Initializer::Normal(0, 1)}};

 protected:
  DTensor Forward(const DTensor& x) override { return MatMul(x, a.Value() + (b.Value() + Tanh(c.Value()))); }
};

// Where one rank has all of a "shard", what it has of a gradient is the gradient's own memory: whoever keeps that keeps it.
TEST(SchedulerReplicasTest, AGradientThatIsKeptStaysAsItIs) {
  RunRanks(2, [](World& world) {
    Sums model;
    Plan hsdp = {{"", FullyShard("shard")}, {"", DataParallel("replica")}};
    hsdp.set_scheduler({.overlap = false});
    const auto context =
        Parallelize(model, world, DeviceMesh::Parse("replica=2,shard=1"), hsdp, {.dtype = DType::kF64});
    const Layout rows = Layout(2, 2).WithShard(0, 0).WithShard(1, 0);
    const DTensor x = RandomNormal(context, DType::kF64, {4, kDim}, rows, "x");
    DTensor kept;
    std::vector<double> values;
    const DTensor value = OnGradient(model.a.Value(), [&](const DTensor& gradient) {
                            kept = gradient;
                            values = gradient.ToLocal().ToVector<double>();
                            return gradient;
                          }).value;
    Backward(Sum(Square(MatMul(x, value))));
    model.a.grad().ToLocal();
    EXPECT_EQ(kept.ToLocal().ToVector<double>(), values);
    EXPECT_NE(model.a.grad().ToLocal().ToVector<double>(), values);
  });
}

// Where one rank has all of a "shard", its piece of a gradient is the gradient's own memory: others may have that.
TEST(SchedulerReplicasTest, AGradientThatTwoParametersHave) {
  const auto gradients = [](const std::string& mesh_text, Plan plan) {
    std::vector<Tensor> gradients;
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    plan.set_scheduler({.overlap = false});
    RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
      Sums model;
      const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
      Layout rows(2, mesh.num_axes());
      for (int axis = 0; axis < mesh.num_axes(); ++axis) rows = rows.WithShard(axis, 0);
      const DTensor x = RandomNormal(context, DType::kF64, {5, kDim}, rows, "x");
      Backward(Sum(Square(model(x))));
      for (Parameter* parameter : model.AllParameters()) {
        const Tensor gradient = parameter->grad().FullTensor();
        if (world.rank() == 0) gradients.push_back(gradient);
      }
    });
    return gradients;
  };
  const std::vector<Tensor> expected = gradients("", {});
  const Plan hsdp = {{"", FullyShard("shard")}, {"", DataParallel("replica")}};
  for (const char* mesh : {"replica=2,shard=1", "replica=2,shard=2"}) {
    const std::vector<Tensor> actual = gradients(mesh, hsdp);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(AllClose(actual[i], expected[i], 1e-12)) << mesh << " "
                                                           << "abc"[i];
    }
  }
}

// Ranks that go different ways: with find_unused, what one rank lacks goes in as zeros, with a warning that names
// it; what no rank reached has no gradient.
TEST(SchedulerUnusedTest, ParametersUnusedOnSomeRanks) {
  RunRanks(3, [](World& world) {
    Chain model;
    const DeviceMesh mesh = DeviceMesh::Parse("dp=3");
    Plan plan = PlanNamed("ddp");
    plan.set_scheduler({.bucket_mb = 0.0003, .find_unused = true});
    std::vector<std::string> warnings;
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    context->state().set_warning_sink([&](const std::string& line) { warnings.push_back(line); });
    for (int step = 1; step <= 3; ++step) {
      for (Parameter* parameter : model.AllParameters()) parameter->ClearGrad();
      context->state().set_step(static_cast<uint64_t>(step));
      // Each rank's own rows decide: the model is called on this rank's term of a sum alone.
      model.order = world.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{0};
      const DTensor x = RandomNormal(context, DType::kF64, {6, kDim}, {}, "x");
      Backward(Sum(Square(model(x))));
      EXPECT_TRUE(model.blocks[1]->weight.grad().defined());
      EXPECT_FALSE(model.blocks[2]->weight.grad().defined());
      // Rank 0's rows alone make block 1's gradient: all ranks have the same bits.
      const Tensor gradient = model.blocks[1]->weight.grad().ToLocal();
      double norm = 0;
      for (const double value : gradient.ToVector<double>()) norm += value * value;
      EXPECT_GT(norm, 0);
    }
    if (world.rank() == 0) {
      EXPECT_TRUE(warnings.empty());
    } else {
      ASSERT_EQ(warnings.size(), 2u);  // weight and bias
      EXPECT_NE(warnings[0].find("parameter 'blocks.1."), std::string::npos) << warnings[0];
      EXPECT_NE(warnings[0].find(absl::StrCat("none on rank ", world.rank())), std::string::npos)
          << warnings[0];
    }
  });
}

// What buckets move has the number of its leaf: ranks that would add one gradient to another of its shape disagree.
TEST(SchedulerUnusedTest, OtherThingsOfOneShapeAreAnError) {
  for (const int num_parts : {1, 2}) {
    RunRanks(2, [&](World& world) {
      const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
      const DTensor terms =
          DTensor::FromLocal(context, Tensor::FromValues<double>({6}, std::vector<double>(6, 1)),
                             Layout(1, 1).WithPartial(0), {6});
      const auto sum = [&](uint32_t subject) {
        const EachMove move = {.source = terms, .to = Layout(1, 1), .into = {}, .subject = subject};
        return RedistributeEach(std::vector<EachMove>(num_parts, move))[0].ToLocal().ToVector<double>();
      };
      EXPECT_EQ(sum(7), std::vector<double>(6, 2));
      const std::string message = MessageOf([&] { sum(world.rank() + 1); });
      EXPECT_THAT(message,
                  testing::HasSubstr(num_parts == 1 ? "rank 1 called all_reduce(f64, sum, count 6 #"
                                                    : ": lists of the same counts, of other things"));
    });
  }
}

// Nor is one unit taken for another of its shape: under FullyShard ranks have to reach the same ones.
TEST(SchedulerUnusedTest, OtherUnitsOfOneShapeAreAnError) {
  RunRanks(2, [](World& world) {
    Chain model;
    Plan plan = PlanNamed("fsdp");
    plan.set_scheduler({.prefetch = 0, .find_unused = true});
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF64});
    model.order = {0, world.rank() + 1};
    const DTensor x = RandomNormal(context, DType::kF64, {6, kDim}, {}, "x");
    EXPECT_THAT(InvalidArgumentMessage([&] { model(x); }),
                testing::AllOf(testing::HasSubstr("rank 0 called all_gather(f64"),
                               testing::HasSubstr("rank 1 called all_gather(f64")));
  });
}

// A view of a gathered parameter is not kept whole by the tape: it is gathered again.
TEST(SchedulerViewTest, TheTapeKeepsNoViewOfACopy) {
  RunRanks(2, [](World& world) {
    Chain model;
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    const auto context = Parallelize(model, world, mesh, PlanNamed("fsdp"), {.dtype = DType::kF64});
    const DTensor x = RandomNormal(context, DType::kF64, {4, kDim}, Layout::Parse("[dp, -]", mesh), "x");
    const auto loss_of = [&](bool transposed) {
      const DTensor w = model.own.Value();
      return Sum(Square(MatMul(x.RequiresGrad(), transposed ? Transpose(w, 0, 1) : w)));
    };
    const int64_t before = world.allocator()->stats().live_bytes;
    DTensor loss = loss_of(/*transposed=*/true);
    const int64_t kept = world.allocator()->stats().live_bytes - before;
    // What the tape has is in proportion to the batch; the root unit itself stays until backward.
    EXPECT_LT(kept, 2 * kDim * kDim * 8 + 4 * 4 * kDim * 8 + 4096);
    Backward(loss);
    loss = DTensor();
    const DTensor gradient = model.own.grad();
    // Against the gradient of the product with a transposed leaf.
    const DTensor whole = model.own.at_rest().Redistribute(Layout(2, 1)).Detach();
    const DTensor leaf = whole.RequiresGrad();
    Backward(Sum(Square(MatMul(x, Transpose(leaf, 0, 1)))));
    EXPECT_TRUE(AllClose(gradient.FullTensor(), leaf.grad().FullTensor(), 1e-12));
  });
}

}  // namespace
}  // namespace weft
