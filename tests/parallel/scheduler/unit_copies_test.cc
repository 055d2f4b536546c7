// Which units are gathered, and when: counted in the ledger.

#include "parallel/scheduler/unit_copies.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/dispatch.h"
#include "dtensor/functions.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "ops/elementwise/elementwise.h"
#include "ops/op/kernel.h"
#include "ops/sharding/sharding_rule.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/tensor_compare.h"
#include "tests/parallel/scheduler/chain.h"
#include "tests/parallel/scheduler/num_calls.h"
#include "tests/parallel/scheduler/trace_spans.h"

namespace weft {
namespace {

int64_t NumGathers(World& world) { return NumCalls(world, Purpose::kParam); }

DTensor LossOf(const IntrusivePtr<MeshContext>& context, Chain& model) {
  return Mean(Square(model(RandomNormal(context, DType::kF64, {4, kDim}, {}, "x"))));
}

// Its last step had a unit that has gone since: the order that it had is no reason to read what is no more.
TEST(UnitCopiesTest, AUnitThatHasGoneIsNotGatheredAhead) {
  for (const bool records : {false, true}) {
    RunRanks(2, [&](World& world) {
      Chain model;
      const auto context =
          Parallelize(model, world, DeviceMesh::Parse("dp=2"), PlanNamed("fsdp"), {.dtype = DType::kF64});
      Backward(LossOf(context, model));
      model.blocks.pop_back();
      model.order = {0, 1, 2};
      world.ledger().Clear();
      {
        std::optional<NoGradGuard> no_grad;
        if (!records) no_grad.emplace(context->state());
        LossOf(context, model);
      }
      EXPECT_EQ(NumGathers(world), 4);  // the root, and three blocks
    });
  }
}

// The gradients of two passes behind a step after which a block has gone.
std::vector<Tensor> GradientsOfWhatIsLeft(const Plan& plan, int64_t num_gathers) {
  std::vector<Tensor> gradients;
  RunRanks(2, [&](World& world) {
    Chain model;
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF64});
    {
      Sgd optimizer(model.AllParameters(), {});
      Backward(LossOf(context, model));
      optimizer.Step(0.1);
      optimizer.ZeroGrad();
    }
    model.blocks.erase(model.blocks.begin() + 1);
    model.order = {0, 1, 2};
    world.ledger().Clear();
    for (int pass = 0; pass < 2; ++pass) Backward(LossOf(context, model));
    EXPECT_EQ(NumGathers(world), num_gathers);
    for (const Parameter* parameter : model.AllParameters()) {
      const Tensor gradient = parameter->grad().FullTensor();
      if (world.rank() == 0) gradients.push_back(gradient);
    }
  });
  return gradients;
}

// All are one unit, which the update has gathered ahead: the first pass reads that, the second what it gathers.
TEST(UnitCopiesTest, WhatIsLeftOfAUnitIsUsedAndGathered) {
  const std::vector<Tensor> expected = GradientsOfWhatIsLeft(PlanNamed("ddp"), 0);
  const std::vector<Tensor> actual = GradientsOfWhatIsLeft({{"", FullyShard("dp")}}, 1);
  ASSERT_EQ(expected.size(), 7u);  // the root's own, and three blocks' two
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(AllClose(actual[i], expected[i], 1e-12)) << i;
}

TEST(UnitCopiesTest, BackwardGathersNoParameterThatHasGone) {
  RunRanks(2, [](World& world) {
    Chain model;
    const auto context =
        Parallelize(model, world, DeviceMesh::Parse("dp=2"), PlanNamed("fsdp"), {.dtype = DType::kF64});
    const DTensor loss = LossOf(context, model);
    model.blocks.pop_back();
    EXPECT_THAT(MessageOf([&] { Backward(loss); }),
                testing::HasSubstr("a parameter of unit 'blocks.3' is gone with its module: backward cannot "
                                   "gather it again"));
  });
}

TEST(UnitCopiesTest, AForwardOfWhatIsFrozenKeepsNothing) {
  RunRanks(4, [](World& world) {
    Chain model;
    const Plan plan = {{"blocks.*", FullyShard("dp", {.reshard_to = 2})}, {"", FullyShard("dp")}};
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=4"), plan, {.dtype = DType::kF64});
    const auto live = [&] { return context->allocator()->by_kind()[MemoryKind::kWholeParam].live; };
    {
      const DTensor loss = LossOf(context, model);
      EXPECT_GT(live(), 0);  // the root's unit, and the blocks' parts
      Backward(loss);
    }
    model.set_trainable(false);
    const DTensor loss = LossOf(context, model);
    EXPECT_EQ(live(), 0);
  });
}

// Gradients of what is trained beside the units go through these.
TEST(UnitCopiesTest, AForwardOfWhatIsPartlyTrainedKeepsPartsForBackward) {
  RunRanks(4, [](World& world) {
    Chain model;
    const Plan plan = {{"blocks.*", FullyShard("dp", {.reshard_to = 2})}, {"own", DataParallel("dp")}};
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=4"), plan, {.dtype = DType::kF64});
    for (const auto& block : model.blocks) block->set_trainable(false);
    const DTensor loss = LossOf(context, model);
    EXPECT_GT(context->allocator()->by_kind()[MemoryKind::kWholeParam].live, 0);
    Backward(loss);
    EXPECT_EQ(context->allocator()->by_kind()[MemoryKind::kWholeParam].live, 0);
  });
}

// The gradients of the inputs of two steps.
std::vector<Tensor> InputGradients(const Plan& plan) {
  std::vector<Tensor> gradients;
  RunRanks(2, [&](World& world) {
    Chain model;
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF64});
    model.set_trainable(false);
    for (int step = 0; step < 2; ++step) {
      const DTensor x = RandomNormal(context, DType::kF64, {4, kDim}, {}, "x").RequiresGrad();
      Backward(Mean(Square(model(x))));
      const Tensor gradient = x.grad().FullTensor();
      if (world.rank() == 0) gradients.push_back(gradient);
    }
  });
  return gradients;
}

TEST(UnitCopiesTest, GradientsGoThroughWhatIsFrozen) {
  const std::vector<Tensor> expected = InputGradients(PlanNamed("ddp"));
  const std::vector<Tensor> actual = InputGradients(PlanNamed("fsdp"));
  ASSERT_EQ(actual.size(), 2u);
  for (int step = 0; step < 2; ++step) EXPECT_TRUE(AllClose(actual[step], expected[step], 1e-12)) << step;
}

// The sum of each row of a square, `num_rows` times.
Tensor RowSums(const DTensor& square, int64_t num_rows) {
  const std::vector<double> elements = square.FullTensor().ToVector<double>();
  std::vector<float> sums;
  for (int64_t i = 0; i < num_rows * kDim; ++i) {
    const auto row = elements.begin() + i % kDim * kDim;
    sums.push_back(static_cast<float>(std::accumulate(row, row + kDim, 0.0)));
  }
  return Tensor::FromValues<float>({num_rows, kDim}, sums);
}

// A cast has elements of its own under every plan. What is computed with one from before an update is differentiated with the
// weights from before it; what was computed with it before that, and would gather them anew, is refused.
TEST(UnitCopiesTest, ACastFromBeforeAnUpdateStaysWhatItWas) {
  for (const char* plan : {"ddp", "fsdp"}) {
    RunRanks(2, [plan](World& world) {
      Chain model;
      const auto context =
          Parallelize(model, world, DeviceMesh::Parse("dp=2"), PlanNamed(plan), {.dtype = DType::kF64});
      const auto input = [&] {
        return RandomNormal(context, DType::kF32, {4, kDim}, {}, "x").RequiresGrad();
      };
      const auto cast = [&] { return Cast(model.own.Value(), DType::kF32); };
      Sgd optimizer(model.AllParameters(), {});
      Backward(LossOf(context, model));
      const DTensor kept[] = {cast(), Transpose(cast(), 0, 1)};
      const Tensor expected[] = {RowSums(kept[0], 4), RowSums(kept[1], 4)};
      const DTensor computed = Sum(MatMul(input(), cast()));
      optimizer.Step(0.1);
      for (int i = 0; i < 2; ++i) {
        const DTensor x = input();
        Backward(Sum(MatMul(x, kept[i])));
        EXPECT_TRUE(AllClose(x.grad().FullTensor(), expected[i], 1e-6)) << plan << " " << i;
      }
      if (model.own.is_copied()) {
        EXPECT_THAT(MessageOf([&] { Backward(computed); }),
                    testing::HasSubstr("but sgd_update has changed it in place since"));
      }
    });
  }
}

TensorTypes InferMultiple(absl::Span<const TensorType> operands, const NoAttributes&) {
  return {operands[0]};
}
std::string MultipleRule(absl::Span<const TensorType> operands, const NoAttributes&) {
  return ElementwiseRule(/*num_operands=*/1, /*num_outputs=*/1, operands[0].ndim());
}
void MultipleBackward(GradContext<NoAttributes, ScaleScalars>& ctx) {
  ctx.SetGrad(0, ctx.Emit(kScale, {ctx.grad()}, {}, ctx.scalars()));
}
// A user's op of the kind of casts, with a scalar of its own.
constinit const Op<NoAttributes, ScaleScalars> kMultiple = {{
    .name = "multiple",
    .operands = "x",
    .infer = InferMultiple,
    .rule = MultipleRule,
    .is_remade = true,
    .backward = MultipleBackward,
}};
void Multiple(const KernelCall<NoAttributes, ScaleScalars>& call) {
  const Tensor x = CloneTensor(call.inputs[0], call.context.allocator);
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    call.outputs[0].data<float>()[i] = x.data<float>()[i] * static_cast<float>(call.scalars().factor);
  }
}
const RegisterKernel kRegister(kMultiple, DeviceType::kCpu, Multiple);

TEST(UnitCopiesTest, WhatIsMadeAgainHasTheScalarsOfItsCall) {
  RunRanks(2, [](World& world) {
    Chain model;
    const auto context =
        Parallelize(model, world, DeviceMesh::Parse("dp=2"), PlanNamed("fsdp"), {.dtype = DType::kF32});
    const DTensor x = RandomNormal(context, DType::kF32, {4, kDim}, {}, "x").RequiresGrad();
    const DTensor three = Call(kMultiple, {model.own.Value()}, {}, {.factor = 3});
    const DTensor six = Call(kMultiple, {three}, {}, {.factor = 2});
    const Tensor expected = RowSums(three + six, 4);
    Backward(Sum(MatMul(x, three)) + Sum(MatMul(x, Transpose(Transpose(six, 0, 1), 0, 1))));
    EXPECT_TRUE(AllClose(x.grad().FullTensor(), expected, 1e-5));
  });
}

// Of the units that are gathered behind the first, too, one that is stale is named.
TEST(UnitCopiesTest, AStaleGatherBehindTheFirstIsNamedOnce) {
  RunRanks(2, [](World& world) {
    Chain model;
    const auto context =
        Parallelize(model, world, DeviceMesh::Parse("dp=2"), PlanNamed("fsdp"), {.dtype = DType::kF64});
    std::vector<std::string> warnings;
    context->state().set_warning_sink([&](const std::string& line) { warnings.push_back(line); });
    Sgd optimizer(model.AllParameters(), {});
    for (int step = 1; step <= 3; ++step) {
      Backward(LossOf(context, model));
      optimizer.Step(0.1);
      optimizer.ZeroGrad();
      const NoGradGuard no_grad(context->state());
      Parameter& weight = model.blocks[0]->weight;
      weight.Load(0.5 * weight.at_rest());
    }
    EXPECT_THAT(warnings,
                testing::ElementsAre("unit 'blocks.0' was gathered ahead and not used: its parameters have "
                                     "been changed since; the gather is dropped"));
  });
}

// The pass lets go of all units at its end: those that it gathered for the next forward would have been gathered for nothing.
TEST(UnitCopiesTest, NothingIsGatheredAheadWhereHooksUpdateWithinBackward) {
  RunRanks(2, [](World& world) {
    Chain model;
    const auto context =
        Parallelize(model, world, DeviceMesh::Parse("dp=2"), PlanNamed("fsdp"), {.dtype = DType::kF64});
    std::vector<std::string> warnings;
    context->state().set_warning_sink([&](const std::string& line) { warnings.push_back(line); });
    std::vector<std::unique_ptr<Sgd>> optimizers;
    for (Parameter* parameter : model.AllParameters()) {
      optimizers.push_back(std::make_unique<Sgd>(std::vector<Parameter*>{parameter}, SgdOptions{}));
      parameter->AddGradientReady([optimizer = optimizers.back().get()](Parameter&) {
        optimizer->Step(0.1);
        optimizer->ZeroGrad();
      });
    }
    for (int step = 1; step <= 3; ++step) {
      world.ledger().Clear();
      Backward(LossOf(context, model));
      EXPECT_EQ(NumGathers(world), 9) << "step " << step;  // the root once, four blocks twice
    }
    EXPECT_THAT(warnings, testing::IsEmpty());
  });
}

// The gathers that rank 0's thread has waited for.
size_t NumWaitedGathers(const nlohmann::json& trace) {
  return SpansOf(trace, "comm", /*rank=*/0, static_cast<int>(Lane::kInline)).size();
}

// Of two steps of which the first learns the order.
size_t NumWaitedGathers(const Plan& plan, int passes_per_step = 1) {
  const nlohmann::json trace = TraceOf(2, [&](World& world) {
    Chain model;
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF64});
    for (int step = 0; step < 2; ++step) {
      const DTensor loss = LossOf(context, model);
      for (int pass = passes_per_step; pass > 0; --pass) {
        Backward(loss, /*seed=*/{}, {.retain_graph = pass > 1});
      }
    }
    world.FinishWork();
  });
  return NumWaitedGathers(trace);
}

// Backward begins with units that forward has left here, the root or a block that stays: what comes after them is gathered
// ahead all the same. Waited for are the root and all blocks in the first forward, the root in the second, and without a block
// that stays the last one in the first backward, which only guesses.
TEST(UnitCopiesTest, WhatComesAfterAUnitThatIsHereIsGatheredAhead) {
  EXPECT_EQ(NumWaitedGathers(PlanNamed("fsdp")), 7u);
  EXPECT_EQ(NumWaitedGathers({{"blocks.0", FullyShard("dp")},
                              {"blocks.1", FullyShard("dp")},
                              {"blocks.2", FullyShard("dp")},
                              {"blocks.3", FullyShard("dp", {.reshard = Reshard::kNever})},
                              {"", FullyShard("dp")}}),
            6u);
}

// The second pass over a history has no forward of its own, and leaves the order of the one there was. Beside the above the root
// is waited for in each second pass.
TEST(UnitCopiesTest, APassWithoutAForwardLeavesItsOrder) {
  EXPECT_EQ(NumWaitedGathers(PlanNamed("fsdp"), /*passes_per_step=*/2), 9u);
}

// The root and the first block, which are frozen, wait for no update of their own: of the second step the rank waits for nothing.
// In the first step for the root, all blocks, and the one that backward only guesses.
TEST(UnitCopiesTest, WhatIsFrozenIsGatheredAheadOfTheNextStep) {
  const nlohmann::json trace = TraceOf(2, [](World& world) {
    Chain model;
    const auto context =
        Parallelize(model, world, DeviceMesh::Parse("dp=2"), PlanNamed("fsdp"), {.dtype = DType::kF64});
    model.own.set_trainable(false);
    model.blocks[0]->set_trainable(false);
    Sgd optimizer(model.TrainableParameters(), {});
    for (int step = 0; step < 2; ++step) {
      world.ledger().Clear();
      Backward(LossOf(context, model));
      optimizer.Step(0.1);
      optimizer.ZeroGrad();
    }
    // Behind what was there: three blocks in forward, two in backward, and what is ahead of the next step.
    EXPECT_EQ(NumGathers(world), 7);
    world.FinishWork();
  });
  EXPECT_EQ(NumWaitedGathers(trace), 6u);
}

// Blocks whose Forward is not called stay until there is no room for them.
TEST(UnitCopiesTest, NoCountOfUnitsAheadIsTooLarge) {
  for (const auto& [prefetch, num_gathers] :
       {std::pair(1, 6), std::pair(std::numeric_limits<int>::max(), 5)}) {
    RunRanks(2, [&, prefetch = prefetch, num_gathers = num_gathers](World& world) {
      Chain model;
      model.order = {0, 1, 2, 3, 0};
      model.by_hand = {0, 1, 2, 3};
      Plan plan = PlanNamed("fsdp");
      plan.set_scheduler({.prefetch = prefetch});
      const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF64});
      LossOf(context, model);
      EXPECT_EQ(NumGathers(world), num_gathers) << "prefetch " << prefetch;
    });
  }
}

}  // namespace
}  // namespace weft
