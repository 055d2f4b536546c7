// Precision as a column of plans, and autocast regions.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/call/call_observer.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/nn/layers/channel_norm.h"
#include "dtensor/nn/layers/convolution.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/data_parallel/data_parallel_cases.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

using testing::HasSubstr;

// bf16 but for the norms.
const Plan& HalfWithNormsInSingle() {
  static const Plan* const plan = new Plan{{"", Precision({.param = DType::kBF16})},
                                           {"blocks.*.ln_1", Precision({.param = DType::kF32})},
                                           {"blocks.*.ln_2", Precision({.param = DType::kF32})},
                                           {"ln_f", Precision({.param = DType::kF32})}};
  return *plan;
}

TrainingRun RunOf(const std::string& plan, const std::string& mesh, int64_t microbatches) {
  TrainingRun run;
  run.make_model = MakeGpt(SmallGptConfig());
  run.mesh = DeviceMesh::Parse(mesh);
  run.plan = DataPlanNamed(plan, run.mesh).Merge(HalfWithNormsInSingle());
  run.dtype = DType::kF32;
  run.microbatches = microbatches;
  return run;
}

struct Case {
  std::string plan;
  std::string mesh;
  int64_t microbatches = 1;
  std::optional<DType> reduce = std::nullopt;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.plan << " on " << c.mesh; }

class PrecisionEqualityTest : public testing::TestWithParam<Case> {};

// Every dtype of the one table of bounds (training_run.h): bf16 compute.
TEST_P(PrecisionEqualityTest, IsOneDevices) {
  const Case& c = GetParam();
  static const TrainingResult* const one = new TrainingResult(Train(RunOf("none", "", 1)));
  TrainingRun run = RunOf(c.plan, c.mesh, c.microbatches);
  if (c.reduce) run.plan = run.plan.Merge({{"", Precision({.reduce = c.reduce})}});
  EXPECT_THAT(Differences(*one, Train(run), kBF16Tolerance), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Plans, PrecisionEqualityTest,
                         testing::Values(Case{"ddp", "dp=2"}, Case{"ddp", "dp=2,tp=2", 3},
                                         Case{"zero2", "dp=3", 3}, Case{"fsdp", "dp=2"},
                                         Case{"fsdp", "dp=2,tp=2", 3}, Case{"hsdp", "replica=2,shard=2"},
                                         Case{"ddp", "dp=2", 1, DType::kBF16},
                                         Case{"fsdp", "dp=2", 3, DType::kBF16},
                                         Case{"hsdp", "replica=2,shard=2", 1, DType::kBF16}));

// f16 compute, of a loss that is scaled so that its gradients do not vanish.
TEST(PrecisionTest, F16IsOneDevices) {
  const auto run_of = [](const std::string& plan, const std::string& mesh, int64_t microbatches) {
    TrainingRun run = RunOf(plan, mesh, microbatches);
    run.plan = DataPlanNamed(plan, run.mesh).Merge({{"", Precision({.param = DType::kF16})}});
    run.mean = [](const LossSum& loss) { return Scale(loss.Mean(), 1024); };
    run.over_total = [](const LossSum& loss, const DTensor& total) { return Scale(loss.Over(total), 1024); };
    return run;
  };
  const TrainingResult one = Train(run_of("none", "", 1));
  for (const auto& [plan, mesh, microbatches] :
       std::vector<std::tuple<const char*, const char*, int64_t>>{{"ddp", "dp=2", 1},
                                                                  {"ddp", "dp=2,tp=2", 3},
                                                                  {"zero2", "dp=3", 3},
                                                                  {"fsdp", "dp=2", 3},
                                                                  {"hsdp", "replica=2,shard=2", 1}}) {
    const TrainingResult result = Train(run_of(plan, mesh, microbatches));
    EXPECT_THAT(Differences(one, result, kF16Tolerance), testing::IsEmpty())
        << plan << " on " << mesh << ": " << DeviationSummary(one, result);
  }
}

// The mutant: norms that are not cast back are seen.
TEST(PrecisionTest, OtherDtypesShow) {
  TrainingRun run = RunOf("none", "", 1);
  run.steps = 3;  // at first all weights of norms are 1
  const TrainingResult mixed = Train(run);
  run.plan = {{"", Precision({.param = DType::kBF16})}};
  const TrainingResult half = Train(run);
  run.plan = {};
  const TrainingResult single = Train(run);
  EXPECT_NE(mixed.losses, half.losses);
  EXPECT_THAT(Differences(single, half, kF32Tolerance), testing::Not(testing::IsEmpty()));
}

// The dtypes in which modules' ops run.
class DTypesSeen : public CallObserver {
 public:
  explicit DTypesSeen(const RankState& state) : state_(state) {}
  void OnCall(const ErasedCall& call, const ResolvedCall& plan) override {
    const std::string name = call.op.name();
    if (name == "cast" || !IsFloating(plan.output_types[0].dtype)) return;
    seen[absl::StrCat(state_.PathName(state_.path_id()), " ", name)].insert(
        std::string(DTypeName(plan.output_types[0].dtype)));
  }
  std::map<std::string, std::set<std::string>> seen;

 private:
  const RankState& state_;
};

constexpr GptConfig kConfig = {.vocabulary = 64, .context = 16, .layers = 1, .heads = 4, .dim = 32};

DTensor OnesOf(const IntrusivePtr<MeshContext>& context, const Layout& layout) {
  const Tensor ones = Tensor::FromValues<int32_t>({4, 8}, std::vector<int32_t>(32, 1));
  return DTensor::Distribute(context, ones, layout);
}

TEST(PrecisionTest, ModulesComputeInTheirs) {
  RunRanks(1, [](World& world) {
    Gpt model(kConfig);
    const Plan plan = HalfWithNormsInSingle().Merge({{"head", Precision({.output = DType::kF32})}});
    const auto context = Parallelize(model, world, DeviceMesh(), plan, {});
    DTypesSeen forward(context->state());
    DTensor logits;
    {
      const CallObserverGuard guard(context->state(), &forward);
      logits = model(OnesOf(context, Layout(2, 0)));
    }
    const auto only = [](const std::string& dtype) { return std::set<std::string>{dtype}; };
    EXPECT_EQ(forward.seen["blocks.0.ln_1 layer_norm"], only("f32"));
    EXPECT_EQ(forward.seen["blocks.0.attn.qkv linear"], only("bf16"));
    EXPECT_EQ(forward.seen["blocks.0.attn packed_attention"], only("bf16"));
    EXPECT_EQ(forward.seen["blocks.0.mlp.down gelu_linear"], only("bf16"));
    EXPECT_EQ(forward.seen["blocks.0 add"], only("bf16"));
    EXPECT_EQ(forward.seen["ln_f layer_norm"], only("f32"));
    EXPECT_EQ(forward.seen["head contract"], only("bf16"));
    EXPECT_EQ(logits.dtype(), DType::kF32);
    Backward(Sum(logits));
    for (const Parameter* parameter : model.AllParameters()) {
      EXPECT_EQ(parameter->grad().dtype(), DType::kF32) << parameter->path();
    }
  });
}

// Modules that no entry reaches compute in the run's dtype, where the plan has any precision.
TEST(PrecisionTest, TheRestIsTheRuns) {
  RunRanks(1, [](World& world) {
    Gpt model(kConfig);
    const auto context =
        Parallelize(model, world, DeviceMesh(), {{"blocks.*.ln_1", Precision({.param = DType::kF32})}},
                    {.compute_dtype = DType::kBF16});
    EXPECT_EQ(model(OnesOf(context, Layout(2, 0))).dtype(), DType::kBF16);
    EXPECT_EQ(model.blocks[0]->ln_1.weight.compute_dtype(), DType::kF32);
    EXPECT_EQ(model.blocks[0]->ln_2.weight.compute_dtype(), DType::kBF16);
  });
}

// Bytes sent by all ranks for a purpose, in the third step.
int64_t BytesOf(const std::string& plan_name, const Plan& precision, Purpose purpose) {
  int64_t num_bytes = 0;
  RunRanks(2, [&](World& world) {
    Gpt model(kConfig);
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    const auto context = Parallelize(model, world, mesh, DataPlanNamed(plan_name, mesh).Merge(precision), {});
    const DTensor tokens = OnesOf(context, Layout(2, 1).WithShard(0, 0));
    for (int step = 1; step <= 3; ++step) {
      world.ledger().Clear();
      Backward(model.Loss(tokens, tokens).Mean());
      for (Parameter* parameter : model.AllParameters()) {
        EXPECT_EQ(parameter->grad().ToLocal().dtype(), DType::kF32);
        parameter->ClearGrad();
      }
    }
    if (world.rank() != 0) return;
    for (const LedgerEntry& entry : world.ledger().entries()) {
      if (entry.tag.purpose == static_cast<uint8_t>(purpose)) num_bytes += entry.num_bytes;
    }
  });
  return num_bytes;
}

TEST(PrecisionTest, WhatMovesIsInItsDtype) {
  for (const std::string plan : {"ddp", "zero2", "fsdp"}) {
    const int64_t gradients = BytesOf(plan, {}, Purpose::kGrad);
    const Plan reduced = {{"", Precision({.reduce = DType::kBF16})}};
    EXPECT_EQ(BytesOf(plan, reduced, Purpose::kGrad) * 2, gradients) << plan;
    const Plan wide = {{"", Precision({.reduce = DType::kF64})}};
    EXPECT_EQ(BytesOf(plan, wide, Purpose::kGrad), gradients * 2) << plan;
    // In which compute reads parameters says nothing of how gradients are summed.
    const Plan half = {{"", Precision({.param = DType::kBF16})}};
    EXPECT_EQ(BytesOf(plan, half, Purpose::kGrad), gradients) << plan;
  }
  const Plan half = {{"", Precision({.param = DType::kBF16})}};
  EXPECT_EQ(BytesOf("fsdp", half, Purpose::kParam) * 2, BytesOf("fsdp", {}, Purpose::kParam));
}

TEST(PrecisionTest, PlansSayIt) {
  const Plan plan = {
      {"", Precision({.param = DType::kBF16, .reduce = DType::kF32})},
      {"head", Precision({.output = DType::kF32})},
      {"blocks.*", Recompute({.keep = {"contract", "attention"}, .every = 2, .last_microbatch = false})}};
  EXPECT_EQ(Plan::FromJson(plan.ToJson()), plan);
  EXPECT_THAT(plan.ToString(), HasSubstr("Precision(param=bf16, reduce=f32)"));
  EXPECT_THAT(plan.ToString(),
              HasSubstr("Recompute(keep=contract,attention, every=2, last_microbatch=false)"));
  EXPECT_THAT(MessageOf([] {
                Plan::FromJson(R"({"entries": [{"path": "", "style": "Precision", "param": "int8"}]})");
              }),
              HasSubstr("expected f16 or bf16 or f32 or f64, got \"int8\""));
  RunRanks(1, [&](World&) {
    Gpt model(kConfig);
    const ResolvedPlan resolved = ResolvePlan(model, DeviceMesh(), HalfWithNormsInSingle());
    const std::string table = resolved.ToTable(model, DeviceMesh());
    EXPECT_THAT(table, HasSubstr("bf16 [-, -]"));
    EXPECT_THAT(table, HasSubstr("f32 [-]"));
  });
}

// Its second output is the mask that it was given, or none.
class Masked : public Module {
 public:
  Masked(Module* parent, std::string name) : Module(parent, std::move(name)) {}
  DTensors operator()(const DTensor& x, const DTensor& mask) {
    return CallModule(*this, {x, mask}, /*num_outputs=*/2);
  }

 protected:
  DTensors ForwardTensors(const DTensors& x) override { return {Tanh(x[0]), x[1]}; }
};

class Masking : public Module {
 public:
  Masked layer{this, "layer"};
};

TEST(PrecisionTest, AnOutputThatIsUndefinedStaysSo) {
  RunRanks(1, [](World& world) {
    Masking model;
    const Plan plan = {{"layer", Precision({.param = DType::kBF16, .output = DType::kF32})}};
    const auto context = Parallelize(model, world, DeviceMesh(), plan);
    const HookHandle hook = model.layer.AddAfterForward([](Module&, const DTensor& y) {
      EXPECT_TRUE(y.defined());
      return y;
    });
    const DTensor x = Full(context, DType::kF32, {2, 3}, 0.5);
    const DTensors with = model.layer(x, x), without = model.layer(x, DTensor());
    EXPECT_EQ(with[1].dtype(), DType::kF32);
    EXPECT_EQ(without[0].dtype(), DType::kF32);
    EXPECT_FALSE(without[1].defined());
  });
}

// A module with a buffer that says its dtype and one that does not.
class Counting : public Module {
 public:
  Counting()
      : mean(this, "mean", {.shape = {4}}), count(this, "count", {.shape = {}, .dtype = DType::kF64}) {}
  ModuleBuffer mean, count;
};

TEST(PrecisionTest, BuffersHaveTheirs) {
  RunRanks(1, [](World& world) {
    Counting plain, narrow, wide;
    Parallelize(plain, world, DeviceMesh(), {}, {.dtype = DType::kBF16});
    EXPECT_EQ(plain.mean.Value().dtype(), DType::kF32);
    Parallelize(narrow, world, DeviceMesh(), {{"", Precision({.buffer = DType::kBF16})}}, {});
    EXPECT_EQ(narrow.mean.Value().dtype(), DType::kBF16);
    EXPECT_EQ(narrow.count.Value().dtype(), DType::kF64);
    Parallelize(wide, world, DeviceMesh(), {{"", Precision({.buffer = DType::kF64})}}, {});
    EXPECT_EQ(wide.mean.Value().dtype(), DType::kF64);
  });
}

TEST(AutocastTest, ProductsInTheGuardsDtypeTheRestAsItIs) {
  RunRanks(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh());
    RankState& state = context->state();
    const Layout whole(2, 0);
    const DTensor x = Full(context, DType::kF32, {4, 8}, 0.5).RequiresGrad();
    const DTensor w = Full(context, DType::kF32, {8, 8}, 0.25).RequiresGrad();
    const DTensor scale = Full(context, DType::kF32, {8}, 1);
    {
      const AutocastGuard guard(state, DType::kBF16);
      const DTensor y = MatMul(x, w);
      EXPECT_EQ(y.dtype(), DType::kBF16);
      EXPECT_EQ(Exp(x).dtype(), DType::kF32);
      EXPECT_EQ((x + y).dtype(), DType::kF32);
      EXPECT_EQ((y * y).dtype(), DType::kBF16);
      EXPECT_EQ(Softmax(y, -1).dtype(), DType::kF32);
      EXPECT_EQ(RmsNormalize(y, scale).dtype(), DType::kF32);
      EXPECT_EQ(MseLoss(y, x).sum.dtype(), DType::kF32);
      {
        const AutocastGuard off(state, std::nullopt);
        EXPECT_EQ(MatMul(x, w).dtype(), DType::kF32);
      }
      Backward(Sum(x + y));
    }
    EXPECT_EQ(MatMul(x, w).dtype(), DType::kF32);
    EXPECT_EQ(x.grad().dtype(), DType::kF32);
    EXPECT_EQ(w.grad().dtype(), DType::kF32);
    EXPECT_EQ(w.grad().FullTensor().ToVector<double>()[0], 4 * 0.5);
    EXPECT_EQ(x.grad().FullTensor().ToVector<double>()[0], 1 + 8 * 0.25);
    EXPECT_THAT(MessageOf([&] { const AutocastGuard guard(state, DType::kI32); }), HasSubstr("got i32"));
  });
}

// As PyTorch's `cat`, and what promotes by itself there: the f32 result of bf16 and f32, and of bf16 and f16.
TEST(AutocastTest, FunctionsOfSeveralTensorsTakeTheWidest) {
  RunRanks(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const Layout rows = Layout(2, 1).WithShard(0, 0);
    const DTensor y = Full(context, DType::kBF16, {4, 3}, 1.5, rows).RequiresGrad();
    const DTensor x = Full(context, DType::kF32, {4, 3}, 0.3, rows);
    const DTensor half = Full(context, DType::kF16, {4, 3}, 0.3, rows);
    using Join = std::function<DTensor(const DTensor& a, const DTensor& b)>;
    const std::vector<Join> joins = {
        [](const DTensor& a, const DTensor& b) { return Pow(a, b); },
        [](const DTensor& a, const DTensor& b) { return Where(Greater(a, b), a, b); },
        [](const DTensor& a, const DTensor& b) { return Where(NotEqual(a, b), b, a); },
        [](const DTensor& a, const DTensor& b) {
          return Concat({a, b}, 0);  // along the dim that is split
        },
        [](const DTensor& a, const DTensor& b) {
          return Concat({a, b, a}, 1);
        },
        [](const DTensor& a, const DTensor& b) {
          return Stack({a, b}, 0);
        },
    };
    for (size_t i = 0; i < joins.size(); ++i) {
      for (const auto& [a, b] : std::vector<std::pair<DTensor, DTensor>>{{y, x}, {x, y}, {y, half}}) {
        EXPECT_THAT(MessageOf([&, a = a, b = b] { joins[i](a, b); }), HasSubstr("operand")) << i;
        const DTensor expected = joins[i](Cast(a, DType::kF32), Cast(b, DType::kF32));
        const AutocastGuard guard(context->state(), DType::kBF16);
        const DTensor joined = joins[i](a, b);
        EXPECT_EQ(joined.ToString(), expected.ToString()) << i;
        EXPECT_EQ(joined.FullTensor().ToVector<double>(), expected.FullTensor().ToVector<double>()) << i;
      }
    }
    const AutocastGuard guard(context->state(), DType::kBF16);
    EXPECT_EQ(Concat({y, y}, 0).dtype(), DType::kBF16);
    Backward(Sum(Concat({y, x}, 1)));
    EXPECT_EQ(y.grad().ToString(), y.ToString());
    EXPECT_EQ(y.grad().FullTensor().ToVector<double>(), std::vector<double>(12, 1));
  });
}

// A convolution and a batch norm whose running statistics are those of the beginning, 0 and 1.
class NormedConvolution : public Module {
 public:
  NormedConvolution() : conv(this, "conv", 1, 4, 2), norm(this, "norm", 4, {.eps = 0}) {}
  nn::Conv2d conv;
  BatchNorm2d norm;

 protected:
  DTensor Forward(const DTensor& x) override { return norm(conv(x)); }
};

TEST(AutocastTest, NormsByRunningStatisticsAreInSingle) {
  RunRanks(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh());
    NormedConvolution model;
    Materialize(model, context);
    model.Eval();
    const DTensor x = Full(context, DType::kF32, {2, 1, 3, 3}, 0.5);
    const AutocastGuard guard(context->state(), DType::kBF16);
    const DTensor before = model.conv(x);
    EXPECT_EQ(before.dtype(), DType::kBF16);
    const DTensor y = model(x);
    EXPECT_EQ(y.dtype(), DType::kF32);
    EXPECT_EQ(y.FullTensor().ToVector<double>(), before.FullTensor().ToVector<double>());
  });
}

}  // namespace
}  // namespace weft
