// Parameter::set_trainable(false): no gradient is computed, none communicated, no update changes the parameter.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/call/call_observer.h"
#include "dtensor/functions.h"
#include "dtensor/inspect/comm_report.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/linear.h"
#include "dtensor/nn/segmented_module.h"
#include "dtensor/optim/adamw.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Net : public Module {
 public:
  Linear a{this, "a", 5, 7, {.weight = Initializer::Normal(0, 0.5)}};
  Linear b{this, "b", 7, 7, {.weight = Initializer::Normal(0, 0.5)}};
  Linear c{this, "c", 7, 3, {.weight = Initializer::Normal(0, 0.5)}};

 protected:
  DTensor Forward(const DTensor& x) override { return c(Gelu(b(Gelu(a(x))))); }
};

struct PlanCase {
  std::string name;
  std::string mesh;
  Plan plan;
};

// Extents of 5, 7 and 3 over 2 and 4: every split is uneven.
std::vector<PlanCase> Plans() {
  return {
      {"one", "", {}},
      {"ddp", "dp=2", {{"", DataParallel("dp")}}},
      {"zero1", "dp=4", {{"", DataParallel("dp", {.shard_state = true})}}},
      {"zero2", "dp=2", {{"", DataParallel("dp", {.shard_gradient = true})}}},
      {"fsdp", "dp=2", {{"*", FullyShard("dp")}, {"", FullyShard("dp")}}},
      {"fsdp_one_unit", "dp=4", {{"", FullyShard("dp")}}},
      {"tp", "tp=2", {{"a", ColumnParallel("tp")}, {"b", RowParallel("tp")}, {"c", ColumnParallel("tp")}}},
      {"tp_fsdp",
       "dp=2,tp=2",
       {{"a", ColumnParallel("tp")}, {"b", RowParallel("tp")}, {"*", FullyShard("dp")}}},
  };
}

class FreezingTest : public testing::TestWithParam<PlanCase> {};

DTensor Batch(const IntrusivePtr<MeshContext>& context, int seed) {
  const bool splits = context->mesh().FindAxis("dp") >= 0;
  return Lay(context, RandomF64({6, 5}, seed), splits ? "[dp, -]" : "[-, -]");
}

// The gradients of a pass by path, whole; those that there are.
std::map<std::string, Tensor> Gradients(Net& net) {
  std::map<std::string, Tensor> gradients;
  for (const Parameter* parameter : net.AllParameters()) {
    if (parameter->grad().defined()) gradients[parameter->path()] = parameter->grad().FullTensor();
  }
  return gradients;
}

// The modules whose gradients were communicated since the ledgers were cleared, and the bytes.
std::pair<std::set<std::string>, int64_t> Communicated(MeshContext& context) {
  std::pair<std::set<std::string>, int64_t> found;
  for (const CommRow& row : CollectCommReport(context).rows) {
    if (row.purpose != "grad") continue;
    found.first.insert(row.path);
    found.second += row.num_bytes;
  }
  context.world().ledger().Clear();
  return found;
}

// How often each op was called.
class CallCounter final : public CallObserver {
 public:
  void OnCall(const ErasedCall& call, const ResolvedCall& /*plan*/) override { ++counts[call.op.name()]; }
  std::map<std::string, int> counts;
};

void Clear(Net& net) {
  for (Parameter* parameter : net.AllParameters()) parameter->ClearGrad();
  net.context()->world().ledger().Clear();
}

void Pass(Net& net) { Backward(Sum(Square(net(Batch(net.context(), /*seed=*/1))))); }

TEST_P(FreezingTest, NoGradientIsCommunicated) {
  OnMesh(GetParam().mesh, [](const IntrusivePtr<MeshContext>& context) {
    Net whole, without_b, only_b;
    for (Net* net : {&whole, &without_b, &only_b}) {
      Parallelize(*net, context, GetParam().plan, {.dtype = DType::kF64});
    }
    // Trained, then frozen, then trained again: by then the buckets have learnt the order of all.
    for (const bool trains : {true, false, false, true}) {
      without_b.b.set_trainable(trains);
      only_b.a.set_trainable(trains);
      only_b.c.set_trainable(trains);
      std::vector<int64_t> bytes;
      for (Net* net : {&whole, &without_b, &only_b}) {
        Clear(*net);
        Pass(*net);
        bytes.push_back(Communicated(*context).second);
      }
      const auto expected = Gradients(whole);
      EXPECT_EQ(expected.size(), 6u);
      for (Net* net : {&without_b, &only_b}) {
        const auto gradients = Gradients(*net);
        for (const Parameter* parameter : net->AllParameters()) {
          const std::string path = parameter->path();
          ASSERT_EQ(gradients.count(path), parameter->trainable() ? 1u : 0u) << path;
          EXPECT_EQ(parameter->Value().requires_grad(), parameter->trainable());
          if (!parameter->trainable()) continue;
          EXPECT_TRUE(SameBits(gradients.at(path), expected.at(path))) << path;
        }
      }
      if (trains) {
        EXPECT_THAT(bytes, ElementsAre(bytes[0], bytes[0], bytes[0]));
      } else {
        EXPECT_EQ(bytes[0], bytes[1] + bytes[2]);
        EXPECT_EQ(bytes[2] > 0, context->mesh().FindAxis("dp") >= 0);
      }
    }
  });
}

TEST_P(FreezingTest, NoUpdateIsMade) {
  OnMesh(GetParam().mesh, [](const IntrusivePtr<MeshContext>& context) {
    Net net;
    net.b.set_trainable(false);  // before there are values
    Parallelize(net, context, GetParam().plan, {.dtype = DType::kF64});
    EXPECT_EQ(net.TrainableParameters().size(), 4u);
    AdamW optimizer(net.AllParameters(), {.weight_decay = 0.1});
    const auto values = [&] {
      std::vector<std::vector<double>> all;
      for (const Parameter* parameter : net.AllParameters()) {
        all.push_back(parameter->at_rest().FullTensor().ToVector<double>());
      }
      return all;
    };
    const auto step = [&] {
      const auto before = values();
      Pass(net);
      optimizer.Step(0.1);
      optimizer.ZeroGrad();
      const auto after = values();
      std::vector<bool> same;
      for (size_t i = 0; i < after.size(); ++i) same.push_back(before[i] == after[i]);
      return same;
    };
    EXPECT_THAT(step(), ElementsAre(false, false, true, true, false, false));
    EXPECT_THAT(step(), ElementsAre(false, false, true, true, false, false));
    net.b.set_trainable(true);
    EXPECT_THAT(step(), ElementsAre(false, false, false, false, false, false));
    // A gradient that stands is forgotten.
    Pass(net);
    net.b.weight.set_trainable(false);
    EXPECT_FALSE(net.b.weight.grad().defined());
    EXPECT_TRUE(net.b.bias->grad().defined());
    EXPECT_THAT(step(), ElementsAre(false, false, true, false, false, false));
    // So is one that a graph from before brings.
    const DTensor recorded = Sum(Square(net(Batch(context, 1))));
    net.a.set_trainable(false);
    Backward(recorded);
    EXPECT_FALSE(net.a.weight.grad().defined());
    EXPECT_TRUE(net.c.weight.grad().defined());
  });
}

INSTANTIATE_TEST_SUITE_P(Plans, FreezingTest, testing::ValuesIn(Plans()),
                         [](const auto& info) { return info.param.name; });

// Products of a backward pass: each layer has one for its weight, and, but for the first, one for its input.
TEST(FreezingTapeTest, NoGradientIsComputed) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Materialize(net, context, {.dtype = DType::kF64});
    const auto products = [&] {
      Clear(net);
      const DTensor loss = Sum(Square(net(Batch(context, 1))));
      CallCounter counter;
      const CallObserverGuard guard(context->state(), &counter);
      Backward(loss);
      return counter.counts["contract"] + counter.counts["linear_weight_grad"];
    };
    EXPECT_EQ(products(), 5);
    net.b.set_trainable(false);
    EXPECT_EQ(products(), 4);
    net.b.set_trainable(true);
    net.a.set_trainable(false);  // what is before b wants no gradient then
    EXPECT_EQ(products(), 3);
    net.b.set_trainable(false);
    EXPECT_EQ(products(), 1);
    net.set_trainable(false);
    EXPECT_FALSE(net(Batch(context, 1)).requires_grad());
    EXPECT_THAT(net.TrainableParameters(), IsEmpty());
    net.set_trainable(true);
    EXPECT_EQ(products(), 5);
  });
}

// Notes what the ledger holds when backward comes to module `a`.
class AtModule final : public CallObserver {
 public:
  AtModule(MeshContext& context, std::string path) : context_(context), path_(std::move(path)) {}
  void OnCall(const ErasedCall& /*call*/, const ResolvedCall& /*plan*/) override {
    const RankState& state = context_.state();
    if (text.empty() && state.PathName(state.path_id()) == path_) text = LedgerText(context_);
  }
  std::string text;

 private:
  MeshContext& context_;
  const std::string path_;
};

// What the ledger holds when the next pass's backward comes to a.
std::string SeenAtA(Net& net) {
  const DTensor loss = Sum(Square(net(Batch(net.context(), 1))));
  Clear(net);
  AtModule at_a(*net.context(), "a");
  const CallObserverGuard guard(net.context()->state(), &at_a);
  Backward(loss);
  return at_a.text;
}

constexpr char kOfUnit[] = "all_gather dp param, reduce_scatter dp grad";

// The gradients of c come first. Frozen, nobody waits for them: those of b go on their way while backward goes on, and
// the unit's copies are let go.
TEST(FreezingOverlapTest, BucketsDoNotWaitForWhatIsFrozen) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Parallelize(net, context, Plan({{"*", FullyShard("dp")}}, {.prefetch = 0, .overlap = false}),
                {.dtype = DType::kF64});
    SeenAtA(net);  // the order is learnt
    const std::string of_unit = kOfUnit;
    EXPECT_EQ(SeenAtA(net), of_unit + ", " + of_unit);  // c, then b
    net.c.set_trainable(false);
    EXPECT_EQ(SeenAtA(net), "all_gather dp param, " + of_unit);
    net.b.bias->set_trainable(false);
    EXPECT_EQ(SeenAtA(net), "all_gather dp param, " + of_unit);
  });
}

// What is trained from the start does not wait for what is trained later, nor that for the root's unit, which is complete
// at the end.
TEST(FreezingOverlapTest, BucketsDoNotWaitForWhatIsTrainedLater) {
  for (const bool has_root : {false, true}) {  // a and c, beside b
    for (const bool trains_a : {false, true}) {
      OnMesh("dp=2", [&](const IntrusivePtr<MeshContext>& context) {
        Net net;
        Plan plan = has_root ? Plan({{"b", FullyShard("dp")}, {"", FullyShard("dp")}})
                             : Plan({{"*", FullyShard("dp")}});
        plan.set_scheduler({.prefetch = 0, .overlap = false});
        Parallelize(net, context, plan, {.dtype = DType::kF64});
        net.a.set_trainable(trains_a);
        net.b.set_trainable(false);
        SeenAtA(net);
        SeenAtA(net);
        net.set_trainable(true);
        SeenAtA(net);
        EXPECT_THAT(LedgerText(*context), HasSubstr("all_reduce dp metric"));  // on another order
        const std::string of_unit = kOfUnit;
        EXPECT_EQ(SeenAtA(net), has_root ? of_unit : of_unit + ", " + of_unit) << trains_a;
        // It holds for whatever is frozen from now on.
        net.a.set_trainable(false);
        net.c.set_trainable(false);
        SeenAtA(net);
        net.set_trainable(true);
        EXPECT_EQ(SeenAtA(net), has_root ? of_unit : of_unit + ", " + of_unit) << trains_a;
        EXPECT_THAT(LedgerText(*context), Not(HasSubstr("all_reduce dp metric")));
        EXPECT_EQ(Gradients(net).size(), 6u);
      });
    }
  }
}

// What is frozen while another order is noted keeps its place.
TEST(FreezingOverlapTest, WhatIsFrozenMeanwhileKeepsItsPlace) {
  OnMesh("dp=2", [&](const IntrusivePtr<MeshContext>& context) {
    Net net;
    Parallelize(net, context, Plan({{"*", FullyShard("dp")}}, {.prefetch = 0, .overlap = false}),
                {.dtype = DType::kF64});
    net.a.set_trainable(false);
    SeenAtA(net);
    net.c.set_trainable(false);
    net.a.set_trainable(true);
    SeenAtA(net);
    net.set_trainable(true);
    EXPECT_EQ(SeenAtA(net), std::string(kOfUnit) + ", " + kOfUnit);
  });
}

// Four links, each of which may be a stage.
class Chain : public SegmentedModule {
 public:
  Chain() {
    for (int i = 0; i < 4; ++i)
      links.Append<Linear>(5, 5, LinearOptions{.weight = Initializer::Normal(0, 0.5)});
  }
  ModuleList links{this, "links"};
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    return MseLoss(outputs[0], targets);
  }

 protected:
  std::vector<Segment> MakeSegments() override {
    std::vector<Segment> segments;
    for (Module* link : links.children()) {
      segments.push_back({.modules = {link}, .cost = 1, .run = [link](const DTensors& x) -> DTensors {
                            return {Gelu((*link)(x[0]))};
                          }});
    }
    return segments;
  }
};

// Stages of which all before and at them is frozen have nothing to do in backward, and send nothing.
TEST(FreezingPipelineTest, StagesThatAreFrozen) {
  constexpr int kRows = 3, kParts = 4;
  const Tensor x = RandomF64({kRows * kParts, 5}, 1), target = RandomF64({kRows * kParts, 5}, 2);
  // The gradients where the first links, so many, are frozen.
  const auto freeze = [](Chain& chain, int frozen) {
    chain.set_trainable(true);
    for (int i = 0; i < frozen; ++i) chain.links[i].set_trainable(false);
    for (Parameter* parameter : chain.AllParameters()) parameter->ClearGrad();
  };
  const std::vector<int> sequence = {0, 1, 2, 3, 2, 0};
  std::vector<std::map<std::string, Tensor>> expected;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    Chain chain;
    Materialize(chain, context, {.dtype = DType::kF64});
    for (const int frozen : sequence) {
      freeze(chain, frozen);
      const DTensor y = chain(Lay(context, x, "[-, -]"));
      Backward(chain.LossOf({y}, Lay(context, target, "[-, -]")).Mean());
      expected.emplace_back();
      for (const Parameter* parameter : chain.AllParameters()) {
        if (parameter->grad().defined()) expected.back()[parameter->path()] = parameter->grad().FullTensor();
      }
    }
  });
  for (const char* name : {"gpipe", "1f1b", "zb_h1", "interleaved", "zbv"}) {
    for (const char* mesh : {"pp=2", "pp=2,dp=2"}) {
      OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
        Chain chain;
        const PipelineSchedule schedule = GenerateSchedule(name, {.ranks = 2, .microbatches = kParts});
        const bool is_v = schedule.num_chunks() == 2 && schedule.stage_rank.back() == 0;
        Plan plan = {{"links.*", Pipeline("pp", {.chunks = schedule.num_chunks(),
                                                 .order = is_v ? StageOrder::kV : StageOrder::kLoop})}};
        const bool splits = context->mesh().num_axes() > 1;
        if (splits) plan = plan.Merge({{"", FullyShard("dp")}});
        Parallelize(chain, context, plan, {.dtype = DType::kF64});
        PipelineExecutor executor(chain, schedule);
        const IntrusivePtr<MeshContext> part = chain.context();
        const auto rows = [&](const Tensor& full, int i) {
          const Tensor piece = CloneTensor(full.Slice(0, i * kRows, kRows), MakeCpuAllocator());
          return Lay(part, piece, splits ? "[dp, -]" : "[-, -]");
        };
        for (size_t i = 0; i < sequence.size(); ++i) {
          freeze(chain, sequence[i]);
          std::vector<Microbatch> parts;
          for (int part_number = 0; part_number < kParts; ++part_number) {
            parts.push_back({.inputs = {rows(x, part_number)}, .targets = rows(target, part_number)});
          }
          executor.Run(parts, Full(part, DType::kF64, {}, kRows * kParts * 5));
          for (const Parameter* parameter : chain.AllParameters()) {
            const auto found = expected[i].find(parameter->path());
            ASSERT_EQ(parameter->grad().defined(), found != expected[i].end())
                << name << " " << sequence[i] << " " << parameter->path();
            if (found == expected[i].end()) continue;
            EXPECT_TRUE(AllClose(parameter->grad().FullTensor(), found->second, 1e-13)) << name;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace weft
