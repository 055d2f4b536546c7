// Hooks of parameters that several stages have (a tied table): each is called once a step, on every rank that has the
// parameter, and sees what it sees on one device, the whole gradient. What it makes of it is what the optimizer gets.

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/pipeline/pipeline_cases.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

// Scales, adds, and is not linear: of terms it makes something else than of their sum.
void Change(Parameter& of) { of.SetGrad(Square(of.grad()) * 3.0 + of.grad() * 0.5 + 0.25); }

// How often each rank of a pipeline has been called.
class Calls {
 public:
  void Count(World& world) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (world.size() > 1) ++calls_[world.rank()];
  }
  const std::map<int, int>& of_ranks() const { return calls_; }

 private:
  std::mutex mutex_;
  std::map<int, int> calls_;
};

// The ranks of these stages, once each in a run.
std::map<int, int> OfStages(const std::set<int>& indices, const DeviceMesh& mesh, int runs) {
  std::map<int, int> calls;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    if (indices.count(static_cast<int>(mesh.CoordinateOf(rank)[0])) > 0) calls[rank] = runs;
  }
  return calls;
}

class TiedHooksTest : public testing::TestWithParam<const char*> {
 protected:
  // `indices`: of the ranks along the pipeline that have the table.
  void ExpectOneDevice(PipelineCase test, const std::set<int>& indices) {
    Calls calls;
    test.tied_head = true;
    test.hook = [&calls](World& world, Parameter& table) {
      calls.Count(world);
      Change(table);
    };
    EXPECT_EQ(absl::StrJoin(DifferencesFromOneDevice(test), "\n"), "") << test.ToString();
    EXPECT_EQ(calls.of_ranks(), OfStages(indices, DeviceMesh::Parse(test.mesh), test.runs))
        << test.ToString();
  }

  // There and back: the first rank has the first stage and the last.
  bool IsV() const {
    const PipelineSchedule schedule = GenerateSchedule(GetParam(), {.ranks = 2, .microbatches = 4});
    return schedule.stage_rank.back() == 0;
  }
  std::set<int> Ends(int ranks) const { return IsV() ? std::set<int>{0} : std::set<int>{0, ranks - 1}; }
};

TEST_P(TiedHooksTest, OfATableSeeOneDevicesGradient) {
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{2, 2, 2, 2}, {3, 1, 2, 3}}) {
    ExpectOneDevice({.schedule = GetParam(), .mesh = "pp=2", .rows = rows}, Ends(2));
    ExpectOneDevice({.schedule = GetParam(), .mesh = "pp=2", .declares_tie = true, .rows = rows}, Ends(2));
    ExpectOneDevice({.schedule = GetParam(), .mesh = "pp=2, dp=2", .rows = rows}, Ends(2));
    ExpectOneDevice({.schedule = GetParam(),
                     .mesh = "pp=2, dp=2",
                     .fully_sharded = true,
                     .declares_tie = true,
                     .rows = rows},
                    Ends(2));
  }
  ExpectOneDevice({.schedule = GetParam(), .mesh = "pp=2, tp=2", .sequence_parallel = true}, Ends(2));
  for (const DataParallelOptions& options :
       {DataParallelOptions{.shard_state = true}, DataParallelOptions{.shard_gradient = true}}) {
    ExpectOneDevice({.schedule = GetParam(), .mesh = "pp=2, dp=2", .data = DataParallel("dp", options)},
                    Ends(2));
  }
}

// Eight blocks on three ranks; the middle one has no table.
TEST_P(TiedHooksTest, OnUnevenStages) {
  const std::vector<int64_t> rows = {1, 2, 1, 1, 3, 1};
  ExpectOneDevice({.schedule = GetParam(), .mesh = "pp=3", .rows = rows}, Ends(3));
  ExpectOneDevice({.schedule = GetParam(), .mesh = "pp=3, dp=2", .rows = rows}, Ends(3));
}

// The second one's hook has what the first has left, and the second's gradient, as on one device.
TEST_P(TiedHooksTest, SeeWhatOtherRunsHaveLeft) {
  ExpectOneDevice({.schedule = GetParam(), .mesh = "pp=2", .runs = 2}, Ends(2));
  ExpectOneDevice({.schedule = GetParam(), .mesh = "pp=2, dp=2", .fully_sharded = true, .runs = 2}, Ends(2));
}

INSTANTIATE_TEST_SUITE_P(Schedules, TiedHooksTest,
                         testing::Values("1f1b", "gpipe", "interleaved", "zb_h1", "zbv"),
                         [](const auto& info) { return std::string(info.param); });

using Ties = std::vector<std::pair<int, int>>;  // the layer, and whose weight it has

// Products of which some have another's weight.
struct TiedProducts {
  Ties ties;
  std::string mesh = "";  // of one device, if empty
  Plan plan = {};
  std::vector<bool> reads = {true, true,
                             true};  // of each step: whether layers with a weight in common are run
};

using Values = std::map<std::string, std::vector<double>>;

void Tie(Products& model, const Ties& ties) {
  for (const auto& [layer, of] : ties) model.layers[layer]->weight.TieTo(model.layers[of]->weight);
}

// Leaves out all layers that have a weight in common, where it is told to.
class SkippedProducts : public Products {
 public:
  SkippedProducts(int count, const Ties& ties) : Products(count) {
    for (const auto& [layer, of] : ties) skipped_.insert({layer, of});
  }
  bool reads = true;

 protected:
  std::vector<Segment> MakeSegments() override {
    std::vector<Segment> chain = Products::MakeSegments();
    for (const int layer : skipped_) {
      chain[layer].run = [this, run = chain[layer].run](const DTensors& x) -> DTensors {
        return reads ? run(x) : x;
      };
    }
    return chain;
  }

 private:
  std::set<int> skipped_;
};

// What steps of descent make of the parameters; every rank that has one has the same bits.
Values Trained(const TiedProducts& test) {
  Values values;
  std::mutex mutex;
  const DeviceMesh mesh = DeviceMesh::Parse(test.mesh);
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    SkippedProducts model(6, test.ties);
    Tie(model, test.ties);
    Parallelize(model, world, mesh, test.plan, {.dtype = DType::kF64});
    const int num_reads = static_cast<int>(std::count(test.reads.begin(), test.reads.end(), true));
    std::map<std::string, int> calls, expected_calls;
    for (const auto& [layer, of] : test.ties) {
      Parameter& weight = model.layers[of]->weight;
      if (!weight.is_here() || !expected_calls.emplace(weight.path(), num_reads).second) continue;
      weight.AddGradientReady([&](Parameter& parameter) {
        ++calls[parameter.path()];
        Change(parameter);
      });
    }
    Sgd descent(model.AllParameters(), {.momentum = 0.5});
    const std::vector<Microbatch> parts = ProductParts(model.context(), {3, 1, 2, 3});
    const DTensor total = Full(model.context(), DType::kF64, Shape(), 9 * kDim);
    std::optional<PipelineExecutor> pipeline;
    if (!test.mesh.empty()) {
      pipeline.emplace(
          model, GenerateSchedule("1f1b", {.ranks = static_cast<int>(mesh.axis_size(0)), .microbatches = 4}));
    }
    for (const bool reads : test.reads) {
      model.reads = reads;
      if (pipeline) {
        pipeline->Run(parts, total);
      } else {
        std::vector<DTensor> losses;
        for (const Microbatch& part : parts) {
          losses.push_back(model.LossOf({model(part.inputs[0])}, part.targets).Over(total));
        }
        Backward(losses);
      }
      descent.Step(0.05);
      descent.ZeroGrad();
    }
    EXPECT_EQ(calls, expected_calls) << test.mesh << ", rank " << world.rank();
    for (const Parameter* parameter : model.AllParameters()) {
      const std::vector<double> mine = parameter->at_rest().FullTensor().ToVector<double>();
      const std::lock_guard<std::mutex> lock(mutex);
      const auto [found, is_new] = values.emplace(parameter->path(), mine);
      EXPECT_EQ(found->second, mine) << parameter->path() << " on rank " << world.rank();
    }
  });
  return values;
}

// Three names of one weight, and a second weight that other ranks have in common.
TEST(TiedProductsTest, WhatTheyMakeOfItIsTrainedOn) {
  const Ties ties = {{2, 0}, {5, 0}, {3, 1}};
  const Values expected = Trained({.ties = ties});
  ASSERT_EQ(expected.size(), 3u);
  const Plan staged = StagedPlan();
  const std::vector<std::pair<std::string, Plan>> beside = {
      {"pp=2", {}},
      {"pp=3", {}},
      {"pp=3", {{"", Offload({.state = true})}}},
      {"pp=2, dp=2", {{"", DataParallel("dp")}}},
      {"pp=3, dp=2", {{"", DataParallel("dp")}}},
      {"pp=3, dp=2", {{"", DataParallel("dp", {.shard_gradient = true})}}},
      {"pp=2, dp=2", {{"", FullyShard("dp")}}},
      {"pp=2, dp=2", {{"", FullyShard("dp")}, {"", Offload({.parameters = true})}}},
  };
  for (const auto& [mesh, plan] : beside) {
    const Values values = Trained({.ties = ties, .mesh = mesh, .plan = staged.Merge(plan)});
    ASSERT_EQ(values.size(), expected.size());
    for (const auto& [path, value] : expected) {
      EXPECT_THAT(values.at(path), testing::Pointwise(testing::DoubleNear(1e-12), value))
          << path << " on " << mesh << " under " << plan.ToString();
    }
  }
}

// A step that reads the weight on no stage leaves it without a gradient, as on one device: its hook, which would add to a
// gradient of zeros, is not called, and the optimizer leaves it and its momentum alone.
TEST(TiedProductsTest, AStepThatDoesNotReadItGivesItNoGradient) {
  const Ties ties = {{3, 0}};
  const std::vector<bool> reads = {true, false, true, false, true};
  const Values expected = Trained({.ties = ties, .reads = reads});
  for (const char* mesh : {"pp=2", "pp=3", "pp=2, dp=2"}) {
    const Values values = Trained({.ties = ties, .mesh = mesh, .plan = StagedPlan(), .reads = reads});
    ASSERT_EQ(values.size(), expected.size());
    for (const auto& [path, value] : expected) {
      EXPECT_THAT(values.at(path), testing::Pointwise(testing::DoubleNear(1e-12), value))
          << path << " on " << mesh;
    }
  }
}

TEST(TiedProductsTest, AreNotCalledOfWhatIsFrozen) {
  for (const char* mesh : {"pp=2", "pp=2, dp=2"}) {
    RunRanks(static_cast<int>(DeviceMesh::Parse(mesh).num_ranks()), [&](World& world) {
      Products model(4);
      Tie(model, {{3, 0}});
      Parallelize(model, world, DeviceMesh::Parse(mesh), StagedPlan(), {.dtype = DType::kF64});
      Parameter& weight = model.layers[0]->weight;
      int calls = 0;
      weight.AddGradientReady([&](Parameter&) { ++calls; });
      PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2}));
      const auto run = [&] { pipeline.Run(ProductParts(model.context(), 2), One(model.context())); };
      weight.set_trainable(false);
      run();
      EXPECT_EQ(calls, 0);
      EXPECT_FALSE(weight.grad().defined());
      weight.set_trainable(true);
      run();
      EXPECT_EQ(calls, 1);
      EXPECT_TRUE(weight.grad().defined());
    });
  }
}

// Of a run that fails nothing is left, and the gradient of the one before it stays. On one rank, which has both stages: no
// other waits for it.
TEST(TiedProductsTest, ARunThatFailsLeavesTheGradientAsItWas) {
  for (const char* mesh : {"pp=1", "pp=1, dp=2"}) {
    RunRanks(static_cast<int>(DeviceMesh::Parse(mesh).num_ranks()), [&](World& world) {
      Products model(4);
      Tie(model, {{3, 0}});
      Parallelize(model, world, DeviceMesh::Parse(mesh), {{"layers.*", Pipeline("pp", {.chunks = 2})}},
                  {.dtype = DType::kF64});
      Parameter& weight = model.layers[0]->weight;
      int calls = 0;
      weight.AddGradientReady([&](Parameter&) { ++calls; });
      PipelineExecutor pipeline(model, GenerateSchedule("interleaved", {.ranks = 1, .microbatches = 3}));
      const auto run = [&] { pipeline.Run(ProductParts(model.context(), 3), One(model.context())); };
      const auto gradient = [&] { return weight.grad().FullTensor().ToVector<double>(); };
      run();
      EXPECT_EQ(calls, 1);
      std::vector<double> expected = gradient();
      int num_forwards = 0;
      HookHandle fails = model.layers[0]->AddAfterForward([&](Module&, const DTensor& y) -> DTensor {
        if (++num_forwards == 3) ThrowInvalidArgument("planted");
        return y;
      });
      EXPECT_EQ(MessageOf(run), "planted");
      EXPECT_EQ(calls, 1);
      EXPECT_EQ(gradient(), expected);
      fails.Remove();
      run();
      EXPECT_EQ(calls, 2);
      for (double& element : expected) element *= 2;
      EXPECT_EQ(gradient(), expected);
    });
  }
}

// A hook that throws ends the step on every rank that has the parameter; the next begins anew.
TEST(TiedProductsTest, AHookMayThrow) {
  RunRanks(2, [](World& world) {
    Products model(4);
    Tie(model, {{3, 0}});
    Parallelize(model, world, DeviceMesh::Parse("pp=2"), StagedPlan(), {.dtype = DType::kF64});
    Parameter& weight = model.layers[0]->weight;
    PipelineExecutor pipeline(model, GenerateSchedule("zb_h1", {.ranks = 2, .microbatches = 2}));
    const auto run = [&] {
      for (Parameter* parameter : model.AllParameters()) parameter->ClearGrad();
      pipeline.Run(ProductParts(model.context(), 2), One(model.context()));
    };
    run();
    const std::vector<double> expected = weight.grad().ToLocal().ToVector<double>();
    HookHandle fails = weight.AddGradientReady([](Parameter&) { ThrowInvalidArgument("planted"); });
    EXPECT_EQ(MessageOf(run), "planted");
    fails.Remove();
    run();
    EXPECT_EQ(weight.grad().ToLocal().ToVector<double>(), expected);
  });
}

}  // namespace
}  // namespace weft
