// Offload as a column of plans: the same bits under every plan, and what is said of lies where it is said.

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "examples/gpt/gpt_plan.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/data_parallel/data_parallel_cases.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

using testing::HasSubstr;

struct Case {
  std::string plan;
  std::string mesh;
  int64_t microbatches = 1;
  std::optional<DType> compute_dtype = std::nullopt;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.plan << " on " << c.mesh << ", " << c.microbatches << " microbatches";
}

TrainingRun RunOf(const Case& c, const Plan& offload) {
  TrainingRun run;
  run.make_model = MakeGpt(SmallGptConfig());
  run.mesh = DeviceMesh::Parse(c.mesh);
  run.plan = DataPlanNamed(c.plan, run.mesh).Merge(offload);
  run.optimizer = TrainingRun::Optimizer::kAdamW;
  run.compute_dtype = c.compute_dtype;
  run.microbatches = c.microbatches;
  run.steps = 3;
  run.gradient_steps = {1, 3};
  return run;
}

Plan Offloading(const OffloadOptions& options) { return {{"", Offload(options)}}; }

class OffloadEqualityTest : public testing::TestWithParam<Case> {};

TEST_P(OffloadEqualityTest, EveryFormHasTheBitsOfNone) {
  const TrainingResult expected = Train(RunOf(GetParam(), {}));
  const Plan some = {{"blocks.*", Offload({.parameters = true, .activations = true})},
                     {"blocks.1", Offload({.activations = false})},
                     {"ln_f", Offload({.state = true})}};
  for (const Plan& offload :
       {Offloading({.state = true}), Offloading({.parameters = true}), Offloading({.activations = true}),
        Offloading({.parameters = true, .activations = true}), some,
        some.Merge(Plan({{"blocks.*", Recompute()}})),
        some.Merge(Plan({{"blocks.*", Recompute({.keep = {"contract", "attention"}})}}))}) {
    const TrainingResult actual = Train(RunOf(GetParam(), offload));
    EXPECT_EQ(actual.initial, expected.initial) << offload.ToString();
    EXPECT_EQ(actual.losses, expected.losses) << offload.ToString();
    EXPECT_EQ(actual.grad_norms, expected.grad_norms) << offload.ToString();
    EXPECT_EQ(actual.gradients, expected.gradients) << offload.ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, OffloadEqualityTest,
                         testing::Values(Case{"none", ""}, Case{"none", "", 3}, Case{"ddp", "dp=2"},
                                         Case{"ddp", "dp=3", 3}, Case{"zero1", "dp=2", 3},
                                         Case{"zero2", "dp=3", 3}, Case{"fsdp", "dp=2"},
                                         Case{"fsdp", "dp=3", 3}, Case{"fsdp_never", "dp=2", 3},
                                         Case{"fsdp_rest", "dp=4"}, Case{"hsdp", "replica=2,shard=2", 3},
                                         Case{"ddp", "dp=2,tp=2"}, Case{"fsdp", "dp=2,tp=2", 3},
                                         Case{"fsdp", "dp=2", 1, DType::kF32},
                                         Case{"ddp", "dp=2", 3, DType::kF32}));

// Bytes by kind, of the device and of the second memory.
struct Bytes {
  MemoryByKind device, host;

  int64_t Device(MemoryKind kind) const { return device[kind].live; }
  int64_t Host(MemoryKind kind) const { return host[kind].live; }
};

Bytes BytesOf(Allocator& device, Allocator& host) { return {device.by_kind(), host.by_kind()}; }

// After forward, and between backward and the update of a second step, on the first of two ranks.
struct Measured {
  Bytes forward, backward;
  int64_t parameter_bytes = 0;
};

// Without overlap, so that peaks do not depend on which thread comes first.
Measured Measure(const std::string& plan, const Plan& offload, int64_t layers = 2) {
  Measured measured;
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  RunRanks(2, [&](World& world) {
    const GptConfig config = {.vocabulary = 64, .context = 16, .layers = layers, .heads = 4, .dim = 32};
    Gpt model(config);
    Plan all = DataPlanNamed(plan, mesh).Merge(offload);
    all.set_scheduler({.overlap = false});
    const auto context = Parallelize(model, world, mesh, all, {.dtype = DType::kF64});
    AdamW optimizer(model.AllParameters(), AdamWOptions());
    const Tensor ones = Tensor::FromValues<int32_t>({8, 16}, std::vector<int32_t>(8 * 16, 1));
    const DTensor tokens = DTensor::Distribute(context, ones, BatchLayout(mesh, all));
    Measured mine;
    for (int step = 1; step <= 2; ++step) {  // the first learns orders
      world.allocator()->ResetPeak();
      world.host_allocator()->ResetPeak();
      const DTensor loss = model.Loss(tokens, tokens).Mean();
      mine.forward = BytesOf(*world.allocator(), *world.host_allocator());
      Backward(loss);
      for (const Parameter* parameter : model.AllParameters()) parameter->grad().ToLocal();
      mine.backward = BytesOf(*world.allocator(), *world.host_allocator());
      optimizer.Step(1e-3);
      optimizer.ZeroGrad();
    }
    for (const Parameter* parameter : model.AllParameters()) {
      mine.parameter_bytes += RoundUpToGranule(parameter->at_rest().ToLocal().num_bytes());
    }
    if (world.rank() == 0) measured = mine;
  });
  return measured;
}

constexpr int64_t kCount = 64;  // the optimizer's count of updates stays

TEST(OffloadMemoryTest, StateAndGradientsAreThere) {
  for (const std::string plan : {"ddp", "fsdp"}) {
    const Measured measured = Measure(plan, Offloading({.state = true}));
    const int64_t all = measured.parameter_bytes;
    EXPECT_EQ(measured.backward.Device(MemoryKind::kParam), all) << plan;
    EXPECT_EQ(measured.backward.Device(MemoryKind::kGrad), 0) << plan;
    EXPECT_EQ(measured.backward.Device(MemoryKind::kState), kCount) << plan;
    EXPECT_EQ(measured.backward.Host(MemoryKind::kParam), 0) << plan;
    EXPECT_EQ(measured.backward.Host(MemoryKind::kGrad), all) << plan;
    EXPECT_EQ(measured.backward.Host(MemoryKind::kState), 2 * all) << plan;
  }
}

TEST(OffloadMemoryTest, ParametersAreThere) {
  for (const std::string plan : {"ddp", "fsdp"}) {
    const Measured measured = Measure(plan, Offloading({.parameters = true}));
    const int64_t all = measured.parameter_bytes;
    for (const MemoryKind kind : {MemoryKind::kParam, MemoryKind::kGrad, MemoryKind::kWholeParam}) {
      EXPECT_EQ(measured.backward.Device(kind), 0) << plan << " " << MemoryKindName(kind);
    }
    EXPECT_EQ(measured.backward.Device(MemoryKind::kState), kCount) << plan;
    EXPECT_EQ(measured.backward.Host(MemoryKind::kParam), all) << plan;
    EXPECT_EQ(measured.backward.Host(MemoryKind::kGrad), all) << plan;
    EXPECT_EQ(measured.backward.Host(MemoryKind::kState), 2 * all) << plan;
  }
}

// What forward leaves of the blocks is there: as many bytes as without, but for pieces that are too small.
TEST(OffloadMemoryTest, ActivationsAreThere) {
  const Measured none = Measure("ddp", {});
  const Measured some = Measure("ddp", Offloading({.activations = true}));
  const int64_t all = none.forward.Device(MemoryKind::kSaved);
  const int64_t there = some.forward.Host(MemoryKind::kSaved);
  const int64_t stays = some.forward.Device(MemoryKind::kSaved);
  EXPECT_EQ(none.forward.Host(MemoryKind::kSaved), 0);
  EXPECT_GT(there, all * 9 / 10);
  EXPECT_LT(stays, all / 10);
  EXPECT_GE(there + stays, all);
  EXPECT_EQ(some.backward.Host(MemoryKind::kSaved), 0);
}

// A later entry keeps those of the blocks on the device: what more layers leave is there, as without Offload.
TEST(OffloadMemoryTest, ActivationsOfModulesBelowMayStay) {
  const auto growth = [](const Plan& offload, auto bytes) {
    return bytes(Measure("ddp", offload, /*layers=*/4)) - bytes(Measure("ddp", offload, /*layers=*/2));
  };
  const auto there = [](const Measured& m) { return m.forward.Host(MemoryKind::kSaved); };
  const auto here = [](const Measured& m) { return m.forward.Device(MemoryKind::kSaved); };
  const Plan all = Offloading({.activations = true});
  const Plan some = all.Merge(Plan({{"blocks.*", Offload({.activations = false})}}));
  EXPECT_GT(growth(all, there), 0);
  EXPECT_EQ(growth(some, there), 0);
  EXPECT_EQ(growth(some, here), growth({}, here));
  EXPECT_GT(Measure("ddp", some).forward.Host(MemoryKind::kSaved), 0);
}

// So is what Recompute keeps of them.
TEST(OffloadMemoryTest, KeptResultsAreThere) {
  const Plan recompute = {{"blocks.*", Recompute({.keep = {"contract", "attention"}})}};
  const Measured none = Measure("ddp", recompute);
  const Measured some = Measure("ddp", recompute.Merge(Plan({{"blocks.*", Offload({.activations = true})}})));
  const Measured inputs = Measure("ddp", {{"blocks.*", Recompute()}});
  const int64_t kept = none.forward.Device(MemoryKind::kSaved) - inputs.forward.Device(MemoryKind::kSaved);
  EXPECT_GT(kept, 0);
  EXPECT_GT(some.forward.Host(MemoryKind::kSaved), kept);
  EXPECT_LE(some.forward.Device(MemoryKind::kSaved), none.forward.Device(MemoryKind::kSaved) - kept);
  EXPECT_EQ(some.backward.Host(MemoryKind::kSaved), 0);
}

// A second pass over a history that was retained fetches them again.
TEST(OffloadMemoryTest, KeptResultsAreReadAgain) {
  RunRanks(1, [](World& world) {
    const GptConfig config = {
        .vocabulary = 64, .context = 16, .layers = 2, .heads = 4, .dim = 32, .dropout = 0.1};
    std::vector<std::vector<double>> gradients[2];
    for (const bool offloads : {false, true}) {
      Gpt model(config);
      Plan plan = {{"blocks.*", Recompute({.keep = {"contract", "attention"}})}};
      if (offloads) plan = plan.Merge(Plan({{"blocks.*", Offload({.activations = true})}}));
      const auto context = Parallelize(model, world, DeviceMesh(), plan, {.dtype = DType::kF64});
      const DTensor tokens = DTensor::Distribute(
          context, Tensor::FromValues<int32_t>({8, 16}, std::vector<int32_t>(8 * 16, 1)), Layout(2, 0));
      const DTensor loss = model.Loss(tokens, tokens).Mean();
      Backward(loss, DTensor(), {.retain_graph = true});
      Backward(loss);
      for (const Parameter* parameter : model.AllParameters()) {
        gradients[offloads].push_back(parameter->grad().ToLocal().ToVector<double>());
      }
    }
    EXPECT_EQ(gradients[0], gradients[1]);
  });
}

// Nothing else of a block that is recomputed goes there in forward, not even for a moment.
TEST(OffloadMemoryTest, OfRecomputedBlocksOnlyTheInputsGo) {
  constexpr int64_t kInput = 4 * 16 * 32 * 8;  // of the rows of a rank
  for (const int64_t every : {1, 2}) {
    const Plan recompute = {{"blocks.*", Recompute({.every = every})}};
    const Measured none = Measure("ddp", recompute);
    const Measured some =
        Measure("ddp", recompute.Merge(Plan({{"blocks.*", Offload({.activations = true})}})));
    const auto& saved = some.forward.host[MemoryKind::kSaved];
    EXPECT_EQ(saved.live, 2 / every * kInput) << every;
    EXPECT_EQ(saved.peak, saved.live) << every;
    EXPECT_LT(some.forward.Device(MemoryKind::kSaved), none.forward.Device(MemoryKind::kSaved)) << every;
  }
}

// Gradients leave the device while backward goes on: the peak does not grow with the layers, as it does without.
TEST(OffloadMemoryTest, GradientsLeaveDuringBackward) {
  const auto growth = [](const Plan& offload) {
    const auto peak = [&](int64_t layers) {
      return Measure("fsdp", offload, layers).backward.device[MemoryKind::kGrad].peak;
    };
    return peak(12) - peak(6);
  };
  EXPECT_GT(growth({}), 0);
  EXPECT_EQ(growth(Offloading({.state = true})), 0);
}

TEST(OffloadPlanTest, PrintsAndIsRead) {
  const Plan plan = {{"", Offload({.state = true})}, {"blocks.*", Offload({.activations = true})}};
  EXPECT_EQ(Plan::FromJson(plan.ToJson()), plan);
  EXPECT_EQ(plan.entries()[0].style.ToString(), "Offload(state=true)");
  Gpt model(SmallGptConfig());
  const std::string table =
      ResolvePlan(model, DeviceMesh::Parse("dp=2"), plan).ToTable(model, DeviceMesh::Parse("dp=2"));
  EXPECT_THAT(table, HasSubstr("host [-, -]"));
}

TEST(OffloadPlanTest, MistakesAreNamed) {
  Gpt model(SmallGptConfig());
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  EXPECT_THAT(MessageOf([&] { ResolvePlan(model, mesh, Offloading({})); }),
              HasSubstr("expected what lies in the second memory: state, parameters or activations"));
  EXPECT_THAT(MessageOf([&] {
                RunRanks(1, [](World& world) { world.host_allocator(); },
                         {.device_options = {.offload_folder = "/nowhere"}});
              }),
              HasSubstr("folder '/nowhere'"));
}

}  // namespace
}  // namespace weft
