// Losses and counts as programs may give them to a trainer: of calls of children alone, and of any dtype.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/context/rank_state.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/loss_scale.h"
#include "dtensor/optim/sgd.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/trainer.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

using Masks = std::map<uint64_t, std::vector<double>>;  // by step

// What a loss draws that calls a child alone, of eight rows in so many parts, in the steps `first` to `last`; of the last
// step twice, as FindNonFinite runs it again. Of four parts the trainer is told the rows, and so knows where they begin.
Masks DrawnBesideARoot(int first, int last, int parts) {
  Masks masks;
  RunRanks(1, [&](World& world) {
    class Model : public Module {
     public:
      Linear layer{this, "layer", 3, 3};
    } model;
    const auto context = Parallelize(model, world, DeviceMesh(), {}, {.dtype = DType::kF64});
    RankState& state = context->state();
    state.set_warning_sink([](const std::string&) {});
    Sgd sgd(model.AllParameters(), {});
    Trainer trainer(model, sgd);
    trainer.set_step(first - 1);
    const int64_t rows = 8 / parts;
    const auto count = [&](int) { return Full(context, DType::kF64, {}, static_cast<double>(rows)); };
    const auto loss = [&](int i) {
      std::optional<BatchOffsetGuard> offset;
      if (parts != 4) offset.emplace(state, i * rows);
      const DTensor mask = Dropout(Full(context, DType::kF64, {rows, 3}, 1), 0.5);
      for (const double each : mask.ToLocal().ToVector<double>()) masks[state.step()].push_back(each);
      return LossSum{.sum = Sum(model.layer(mask)), .count = count(i)};
    };
    for (int step = first; step <= last; ++step) {
      if (parts == 1) {
        trainer.Step(8, [&] { return loss(0).Mean(); });
      } else if (parts == 2) {
        trainer.Step(parts, count, loss);
      } else {
        trainer.Step(
            parts, [&](int) { return rows; }, [&](int i) { return loss(i).Mean(); });
      }
    }
    trainer.Flush();
    const uint64_t number = state.call_number();
    trainer.FindNonFinite();
    EXPECT_EQ(state.call_number(), number);
    EXPECT_EQ(state.step(), static_cast<uint64_t>(last));
  });
  return masks;
}

// The step, and not how often the process has drawn: in parts as in one, and after a start at a later step.
TEST(GivenLossTest, ALossThatCallsChildrenAloneDrawsByTheStep) {
  const Masks whole = DrawnBesideARoot(1, 3, /*parts=*/1);
  ASSERT_EQ(whole.size(), 3u);
  EXPECT_NE(whole.at(1), whole.at(2));
  const std::vector<double> once(whole.at(3).begin(), whole.at(3).begin() + 24);
  std::vector<double> twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_EQ(whole.at(3), twice);
  for (const int parts : {2, 4}) EXPECT_EQ(DrawnBesideARoot(1, 3, parts), whole) << parts;
  EXPECT_EQ(DrawnBesideARoot(3, 3, /*parts=*/1), (Masks{{3, twice}}));
}

// Products whose targets are counted in another dtype.
class CountedProducts : public Products {
 public:
  explicit CountedProducts(DType dtype) : Products(/*count=*/2), dtype_(dtype) {}
  DTensor CountOf(const DTensor& targets) override { return Convert(Products::CountOf(targets), dtype_); }

 private:
  const DType dtype_;
};

// Losses, norms and counts of two steps of two parts.
std::vector<double> RecordsOf(DType dtype, bool is_staged, bool scales) {
  std::vector<double> records;
  RunRanks(2, [&](World& world) {
    CountedProducts model(dtype);
    const DeviceMesh mesh = DeviceMesh::Parse(is_staged ? "pp=2" : "dp=2");
    const Plan plan = is_staged ? StagedPlan() : Plan({{"", DataParallel("dp")}});
    Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    Sgd sgd(model.AllParameters(), {});
    LossScale scale(model.context(), {.initial = 8});
    Trainer trainer(model, sgd,
                    {.schedule = [](int64_t) { return 0.05; }, .loss_scale = scales ? &scale : nullptr});
    const std::vector<Microbatch> parts = ProductParts(model.context(), 2);
    std::optional<PipelineExecutor> pipeline;
    if (is_staged) pipeline.emplace(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2}));
    std::vector<double> here;
    for (int step = 0; step < 2; ++step) {
      if (pipeline) {
        trainer.Step(*pipeline, parts);
      } else {
        trainer.Step(
            2, [&](int i) { return model.CountOf(parts[i].targets); },
            [&](int i) { return model.LossOf({model(parts[i].inputs[0])}, parts[i].targets); });
      }
      const StepMetrics metrics = trainer.Flush().value();
      here.insert(here.end(), {metrics.loss, metrics.grad_norm, static_cast<double>(metrics.num_tokens)});
      EXPECT_TRUE(metrics.updated);
    }
    if (world.rank() == 0) records = here;
  });
  return records;
}

TEST(GivenLossTest, CountsMayBeOfAnyDType) {
  for (const bool is_staged : {false, true}) {
    for (const bool scales : {false, true}) {
      const std::vector<double> expected = RecordsOf(DType::kF64, is_staged, scales);
      ASSERT_EQ(expected.size(), 6u);
      EXPECT_EQ(expected[2], 2 * kRows * kDim);
      for (const DType dtype : {DType::kF32, DType::kI32, DType::kI64}) {
        EXPECT_EQ(RecordsOf(dtype, is_staged, scales), expected) << dtype << is_staged << scales;
      }
    }
  }
}

// Counts that f16 does not hold, and that bf16 rounds. By hand: the sum is 28000, and each element's gradient 7000, over
// 70000.
TEST(GivenLossTest, SumsOfHalvesAreDividedByTheCountAsItIs) {
  class Model : public Module {
   public:
    Parameter w{this, "w", {.shape = {4}, .initializer = Initializer::Constant(1)}};
  };
  for (const DType dtype : {DType::kF64, DType::kF16, DType::kBF16}) {
    RunRanks(2, [&](World& world) {
      Model model;
      const auto context =
          Parallelize(model, world, DeviceMesh::Parse("dp=2"), {{"", DataParallel("dp")}}, {.dtype = dtype});
      Sgd sgd(model.AllParameters(), {});
      Trainer trainer(model, sgd, {.schedule = [](int64_t) { return 1.0; }});
      const auto count = [&](int) { return Full(context, DType::kF64, {}, 70000); };
      trainer.Step(/*microbatches=*/1, count, [&](int i) {
        return LossSum{.sum = Scale(Sum(model.w.Value()), 7000), .count = count(i)};
      });
      const StepMetrics metrics = trainer.Flush().value();
      EXPECT_NEAR(metrics.loss, 0.4, 1e-3) << dtype;
      EXPECT_NEAR(metrics.grad_norm, 0.2, 1e-2) << dtype;
      EXPECT_NEAR(Cast(model.w.at_rest(), DType::kF64).ToLocal().ToVector<double>()[3], 0.9, 1e-2) << dtype;
      const LossSum given = {.sum = Full(context, dtype, {}, 256), .count = count(0)};
      EXPECT_NEAR(given.Over(Full(context, DType::kF64, {}, 257)).Item(), 256.0 / 257, 1e-6) << dtype;
    });
  }
}

}  // namespace
}  // namespace weft
