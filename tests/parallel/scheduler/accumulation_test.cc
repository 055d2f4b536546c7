// Gradients that several passes of a step add up, where passes reach other parameters than each other, or fail: under plans
// that hold them back until the last pass they are those of one rank.

#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/redistribution/implicit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/parallel/scheduler/chain.h"

namespace weft {
namespace {

using testing::IsEmpty;

using Order = std::vector<int>;  // of the blocks that a pass calls

void ClearGradients(Module& model) {
  for (Parameter* parameter : model.AllParameters()) parameter->ClearGrad();
}

DTensor LossOf(const IntrusivePtr<MeshContext>& context, Chain& model, const Order& order, uint64_t number) {
  context->state().set_step(number);
  model.order = order;
  return Sum(Square(model(RandomNormal(context, DType::kF64, {6, kDim}, {}, "x"))));
}

// One pass for each of `orders`, all but the last under NoSync.
void Accumulate(const IntrusivePtr<MeshContext>& context, Chain& model, const std::vector<Order>& orders) {
  for (size_t i = 0; i < orders.size(); ++i) {
    std::optional<NoSync> no_sync;
    if (i + 1 < orders.size()) no_sync.emplace(context->state());
    Backward(LossOf(context, model, orders[i], i));
  }
}

using Gradients = std::map<std::string, std::vector<double>>;  // by path, of those that have one

Gradients GradientsOf(Module& model) {
  Gradients gradients;
  for (const Parameter* parameter : model.AllParameters()) {
    if (!parameter->grad().defined()) continue;
    gradients[parameter->path()] = parameter->grad().FullTensor().ToVector<double>();
  }
  return gradients;
}

double Norm(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

// The parameters whose gradients are apart by more than `tolerance` of their norm, or of which one has none.
std::vector<std::string> Different(const Gradients& actual, const Gradients& expected, double tolerance = 0) {
  std::vector<std::string> paths;
  for (const auto& [path, values] : expected) {
    const auto found = actual.find(path);
    if (found == actual.end()) {
      paths.push_back(absl::StrCat(path, " is missing"));
      continue;
    }
    std::vector<double> difference = values;
    for (size_t i = 0; i < values.size(); ++i) difference[i] -= found->second[i];
    if (!(Norm(difference) <= tolerance * Norm(values))) paths.push_back(path);
  }
  for (const auto& [path, values] : actual) {
    if (expected.count(path) == 0) paths.push_back(absl::StrCat(path, " is too much"));
  }
  return paths;
}

class AccumulationTest : public testing::TestWithParam<std::string> {};

TEST_P(AccumulationTest, PassesReachOtherParametersThanEachOther) {
  const std::vector<std::vector<Order>> steps = {
      {{0, 1}, {2, 3}}, {{2}, {0}}, {{0, 1, 2, 3}, {1}, {3}}, {{0, 1, 2}, {}}};
  const auto run = [&](const std::string& mesh_text, const Plan& plan) {
    std::vector<Gradients> outcome;
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
      Chain model;
      const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
      for (const std::vector<Order>& step : steps) {
        ClearGradients(model);
        Accumulate(context, model, step);
        const Gradients gradients = GradientsOf(model);
        if (world.rank() == 0) outcome.push_back(gradients);
      }
    });
    return outcome;
  };
  const std::vector<Gradients> expected = run("", {});
  for (const bool find_unused : {false, true}) {
    Plan plan = PlanNamed(GetParam());
    plan.set_scheduler({.bucket_mb = 0.0003, .find_unused = find_unused});
    const std::vector<Gradients> actual = run("dp=3", plan);
    for (size_t step = 0; step < steps.size(); ++step) {
      SCOPED_TRACE(absl::StrCat("step ", step, find_unused ? ", find_unused" : ""));
      EXPECT_THAT(Different(actual[step], expected[step], 1e-12), IsEmpty());
    }
  }
}

// What a step that was given up has added up is no part of the next.
TEST_P(AccumulationTest, ClearedGradientsAreGone) {
  RunRanks(2, [&](World& world) {
    Chain model, fresh;
    const auto context =
        Parallelize(model, world, DeviceMesh::Parse("dp=2"), PlanNamed(GetParam()), {.dtype = DType::kF64});
    Parallelize(fresh, context, PlanNamed(GetParam()), {.dtype = DType::kF64});
    {
      const NoSync no_sync(context->state());
      Backward(LossOf(context, model, {0, 1, 2, 3}, 7));
    }
    ClearGradients(model);
    for (Chain* chain : {&model, &fresh}) Accumulate(context, *chain, {{0, 1, 2, 3}, {0, 1, 2, 3}});
    EXPECT_THAT(Different(GradientsOf(model), GradientsOf(fresh)), IsEmpty());
  });
}

// A pass that fails takes with it what passes under NoSync have added up before it: nobody can tell which part of that was
// its own.
TEST_P(AccumulationTest, APassThatFailsLeavesNothing) {
  const bool holds_back = GetParam() == "ddp" || GetParam() == "zero1";
  for (const bool syncs : {false, true}) {
    RunRanks(2, [&](World& world) {
      Chain model, fresh;
      const auto context =
          Parallelize(model, world, DeviceMesh::Parse("dp=2"), PlanNamed(GetParam()), {.dtype = DType::kF64});
      Parallelize(fresh, context, PlanNamed(GetParam()), {.dtype = DType::kF64});
      std::optional<NoSync> no_sync(context->state());
      Backward(LossOf(context, model, {0, 1, 2, 3}, 7));
      const DTensor used = LossOf(context, model, {0, 1, 2, 3}, 8);
      Backward(used);
      if (syncs) no_sync.reset();
      // Its history is used up half-way: the leaves behind it have delivered by then.
      EXPECT_THROW(Backward(Mul(used, Sum(model.own.Value()))), Error);
      no_sync.reset();
      if (syncs || !holds_back) ClearGradients(model);
      for (Chain* chain : {&model, &fresh}) Accumulate(context, *chain, {{0, 1, 2, 3}, {0, 1, 2, 3}});
      EXPECT_THAT(Different(GradientsOf(model), GradientsOf(fresh)), IsEmpty())
          << (syncs ? "syncs" : "under NoSync");
    });
  }
}

// A row per rank, of numbers that f16 does not hold. Their sum is 1.
DTensor LargeRows(World& world, const IntrusivePtr<MeshContext>& context) {
  const std::vector<float> row(kDim, world.rank() == 0 ? 70000 : -69999);
  return DTensor::FromLocal(context, Tensor::FromValues<float>({1, kDim}, row), Layout(2, 1).WithShard(0, 0),
                            {2, kDim});
}

// The gradient of a parameter of halves that the model casts waits for its bucket with the terms in f32, also under NoSync.
TEST_P(AccumulationTest, WhatAModelCastsMovesInItsBucketAlone) {
  const bool holds_back = GetParam() == "ddp" || GetParam() == "zero1";
  RunRanks(2, [&](World& world) {
    Chain model;
    const auto context =
        Parallelize(model, world, DeviceMesh::Parse("dp=2"), PlanNamed(GetParam()), {.dtype = DType::kF16});
    const DTensor x = LargeRows(world, context);
    const ImplicitRedistributionGuard forbid(context->state(), ImplicitRedistribution::kForbid);
    // Returns how often the pass moves anything but whole parameters, and the order of arrival.
    const auto pass = [&] {
      world.ledger().Clear();
      Backward(Sum(MatMul(x, Cast(model.own.Value(), DType::kF32))));
      int64_t calls = 0;
      for (const LedgerEntry& entry : world.ledger().entries()) {
        const auto purpose = static_cast<Purpose>(entry.tag.purpose);
        if (purpose != Purpose::kParam && purpose != Purpose::kMetric) calls += entry.calls;
      }
      return calls;
    };
    {
      const NoSync no_sync(context->state());
      EXPECT_EQ(pass(), holds_back ? 0 : 1);
    }
    EXPECT_EQ(pass(), 1);
    EXPECT_EQ(GradientsOf(model).at("own"), std::vector<double>(kDim * kDim, 2));
  });
}

INSTANTIATE_TEST_SUITE_P(Plans, AccumulationTest, testing::Values("ddp", "zero1", "zero2", "fsdp"),
                         [](const auto& info) { return info.param; });

// Ranks may differ in which of the passes reaches a parameter.
TEST(FindUnusedTest, APassBeforeTheLastReachesItOnOneRankAlone) {
  RunRanks(3, [](World& world) {
    Chain model;
    Plan plan = PlanNamed("ddp");
    plan.set_scheduler({.bucket_mb = 0.0003, .find_unused = true});
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=3"), plan, {.dtype = DType::kF64});
    const Order first = world.rank() == 0 ? Order{0, 1} : Order{0};
    Accumulate(context, model, {first, {0}});
    const DTensor& gradient = model.blocks[1]->weight.grad();
    ASSERT_TRUE(gradient.defined());
    EXPECT_GT(Sum(Square(gradient)).Item(), 0);
  });
}

// They may differ in the dtype of what comes, too: it is summed in the widest.
TEST(FindUnusedTest, AParameterIsCastOnOneRankAlone) {
  RunRanks(3, [](World& world) {
    Chain model;
    Plan plan = PlanNamed("ddp");
    plan.set_scheduler({.find_unused = true});
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=3"), plan, {.dtype = DType::kF16});
    // Of ranks 0 and 1; rank 2 reaches another parameter.
    const bool is_first = world.rank() == 0;
    const DType dtype = is_first ? DType::kF32 : DType::kF16;
    const DTensor x = DTensor::FromLocal(
        context,
        CastTensor(
            Tensor::FromValues<double>({1, kDim}, std::vector<double>(kDim, is_first ? 60001 : -60000)),
            dtype, context->allocator()),
        Layout(2, 1).WithShard(0, 0), {3, kDim});
    const DTensor weight = (world.rank() == 2 ? model.blocks[0]->weight : model.own).Value();
    Backward(Sum(MatMul(x, is_first ? Cast(weight, dtype) : weight)));
    EXPECT_EQ(GradientsOf(model).at("own"), std::vector<double>(kDim * kDim, 1));
    EXPECT_EQ(GradientsOf(model).at("blocks.0.weight"), std::vector<double>(kDim * kDim, -60000));
  });
}

// Without find_unused, ranks that reach other parameters than each other end, both of them, with an error that tells what
// either called: where they reach as many, and where one reaches more, so that the other is in its next pass by then.
TEST(FindUnusedTest, WithoutItOtherParametersOnOtherRanksAreAnErrorOnAll) {
  const Order second_orders[] = {{0, 2}, {0}};  // all blocks have the same shapes
  for (const Order& second_order : second_orders) {
    for (const bool overlap : {true, false}) {
      for (const double bucket_mb : {0.0003, 25.0}) {
        std::vector<std::string> messages(2);
        RunRanks(2, [&](World& world) {
          Chain model;
          Plan plan = PlanNamed("ddp");
          plan.set_scheduler({.bucket_mb = bucket_mb, .overlap = overlap});
          const auto context =
              Parallelize(model, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF64});
          messages[world.rank()] = MessageOf([&] {
            for (int pass = 0; pass < 2; ++pass) {
              const Layout rows = Layout(2, 1).WithShard(/*axis=*/0, /*dim=*/0);
              DTensor y = RandomNormal(context, DType::kF64, {6, kDim}, rows, "x");
              const Order order = world.rank() == 0 ? Order{0, 1} : second_order;
              for (const int block : order) y = (*model.blocks[block])(y);
              Backward(Sum(Square(y)));
              for (Parameter* parameter : model.AllParameters()) {
                if (parameter->grad().defined()) parameter->grad().ToLocal();
                parameter->ClearGrad();
              }
            }
          });
        });
        for (const std::string& message : messages) {
          EXPECT_THAT(message,
                      testing::AllOf(testing::HasSubstr("rank 0 called all_reduce(f64, sum, count "),
                                     testing::HasSubstr("rank 1 called all_reduce(f64, sum, count ")))
              << (overlap ? "on a lane" : "inline") << ", buckets of " << bucket_mb << " MiB, rank 1 reaches "
              << second_order.size() << " blocks";
        }
      }
    }
  }
}

// Nor need any rank have reached it in the first pass, which learns how gradients lie.
TEST(FindUnusedTest, ALaterPassReachesItFirst) {
  RunRanks(2, [](World& world) {
    Chain model;
    Plan plan = PlanNamed("ddp");
    plan.set_scheduler({.bucket_mb = 0.0003, .find_unused = true});
    std::vector<std::string> warnings;
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF64});
    context->state().set_warning_sink([&](const std::string& line) { warnings.push_back(line); });
    Accumulate(context, model, {{0}});
    ClearGradients(model);
    Accumulate(context, model, {world.rank() == 0 ? Order{0, 2} : Order{0}});
    const DTensor& gradient = model.blocks[2]->weight.grad();
    ASSERT_TRUE(gradient.defined());
    EXPECT_GT(Sum(Square(gradient)).Item(), 0);
    EXPECT_EQ(warnings.size(), world.rank() == 0 ? 0u : 2u);  // weight and bias
  });
}

// A rank whose pass reaches nothing takes no part in that pass's agreement: its next one meets the others' there.
TEST(FindUnusedTest, APassThatReachesNothingOnOneRankIsAnErrorOnAll) {
  for (const uint64_t without : {1, 2}) {  // the first pass, which learns the order, or a later one
    std::vector<std::string> messages(3);
    RunRanks(3, [&](World& world) {
      Chain model;
      Plan plan = PlanNamed("ddp");
      plan.set_scheduler({.find_unused = true});
      const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=3"), plan, {.dtype = DType::kF64});
      messages[world.rank()] = MessageOf([&] {
        for (uint64_t step = 1; step <= 3; ++step) {
          DTensor loss = LossOf(context, model, {0}, step);
          if (world.rank() == 2 && step == without) {
            loss = Sum(Square(Full(context, DType::kF64, {6, kDim}, 1).RequiresGrad()));
          }
          Backward(loss);
          ClearGradients(model);
        }
      });
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(messages[rank],
                absl::StrCat("find_unused: ranks have met at the end of passes of steps ", without, " to ",
                             without + 1, ", that of rank ", rank, " is of step ", without + (rank == 2),
                             ": expected every pass to reach a parameter of the model on every rank"));
    }
  }
}

// Passes of several models end in one order on all ranks, whichever of them a rank's graph comes to first.
TEST(FindUnusedTest, TwoModelsInOnePass) {
  for (const bool is_named : {false, true}) {
    RunRanks(2, [&](World& world) {
      Chain a, b;
      if (is_named) {
        a.set_name("a");
        b.set_name("b");
      }
      Plan plan = PlanNamed("ddp");
      plan.set_scheduler({.find_unused = true});
      const auto context = Parallelize(a, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF64});
      Parallelize(b, context, plan, {.dtype = DType::kF64});
      const DTensor x = RandomNormal(context, DType::kF64, {6, kDim}, {}, "x");
      const auto loss_of_a = [&] {
        const DTensor y = a(x);
        return Sum(world.rank() == 1 ? Tanh(y) : y);  // a is farther from the loss than b, on this rank alone
      };
      Backward(loss_of_a());
      Backward(Sum(b(x)));
      const Gradients of_a = GradientsOf(a), of_b = GradientsOf(b);
      ClearGradients(a);
      ClearGradients(b);
      Backward(loss_of_a() + Sum(b(x)));
      EXPECT_THAT(Different(GradientsOf(a), of_a), IsEmpty()) << (is_named ? "named" : "without names");
      EXPECT_THAT(Different(GradientsOf(b), of_b), IsEmpty()) << (is_named ? "named" : "without names");
    });
  }
}

// An error where the last buckets are brought to rest, behind the last gradient of the pass, ends the pass.
TEST(FindUnusedTest, AHookThatFailsEndsThePass) {
  RunRanks(2, [](World& world) {
    Chain model, fresh;
    Plan plan = PlanNamed("ddp");
    plan.set_scheduler({.find_unused = true});
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF64});
    Parallelize(fresh, context, plan, {.dtype = DType::kF64});
    int num_calls = 0;
    const auto hook = model.own.AddGradientReady([&](Parameter&) {
      if (num_calls++ == 0) ThrowInvalidArgument("not this one");
    });
    EXPECT_EQ(MessageOf([&] { Accumulate(context, model, {{0, 1}}); }), "not this one");
    ClearGradients(model);
    for (Chain* chain : {&model, &fresh}) Accumulate(context, *chain, {{2, 3}});
    EXPECT_THAT(Different(GradientsOf(model), GradientsOf(fresh)), IsEmpty());
    EXPECT_EQ(num_calls, 2);
  });
}

}  // namespace
}  // namespace weft
