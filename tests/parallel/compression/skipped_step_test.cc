// Steps that a trainer skips: what methods of communication keep stays as it was, and is sent later.

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/loss_scale.h"
#include "dtensor/optim/sgd.h"
#include "gtest/gtest.h"
#include "parallel/compression/communication_state.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/trainer.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

constexpr int64_t kRows = 4, kContext = 6;
constexpr int32_t kVocabulary = 31, kIgnored = -100;

using Values = std::map<std::string, std::vector<double>>;

struct Case {
  const char* mesh = "dp=2";
  bool is_sharded = false;
  bool is_scaled = false;  // the loss

  std::string ToString() const {
    return absl::StrCat(mesh, is_sharded ? " sharded" : "", is_scaled ? " scaled" : "");
  }
};
constexpr Case kCases[] = {
    {},
    {.is_sharded = true},
    {.mesh = "pp=2,dp=2"},
    {.is_scaled = true},
    {.mesh = "pp=2,dp=2", .is_scaled = true},
};

// A tiny GPT that is trained with compressed gradients, in stages where the mesh has pp.
class Training {
 public:
  Training(World& world, const Case& test, const std::string& method)
      : mesh_(DeviceMesh::Parse(test.mesh)),
        model_({.vocabulary = kVocabulary, .context = kContext, .layers = 2, .heads = 2, .dim = 8}),
        context_(Parallelize(model_, world, mesh_, PlanOf(test.is_sharded, method), {.dtype = DType::kF64})),
        sgd_(model_.AllParameters(), {.momentum = 0.5}),
        scale_(model_.context(), {.initial = 8}),
        trainer_(
            model_, sgd_,
            {.schedule = [](int64_t) { return 0.05; }, .loss_scale = test.is_scaled ? &scale_ : nullptr}) {
    if (!is_staged()) return;
    pipeline_ =
        std::make_unique<PipelineExecutor>(model_, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2}));
  }

  Trainer& trainer() { return trainer_; }

  // Step `batch`'s own; `counts` or not. Two microbatches.
  void Step(int64_t batch, bool counts = true) {
    const DTensor tokens = Rows(batch);
    const DTensor targets = counts ? tokens : FullLike(tokens, kIgnored);
    if (is_staged()) {
      trainer_.Step(*pipeline_, {{.inputs = {tokens}, .targets = targets},
                                 {.inputs = {tokens}, .targets = targets, .batch_offset = kRows}});
    } else {
      trainer_.Step(
          /*microbatches=*/2, [targets](int) { return CountTargets(targets); },
          [this, tokens, targets](int) { return model_.Loss(tokens, targets); });
    }
  }
  // A plain one of a loss times `factor`.
  void StepTimes(double factor) {
    const DTensor tokens = Rows(1);
    trainer_.Step(kRows * kContext,
                  [this, tokens, factor] { return Scale(model_.Loss(tokens, tokens).Mean(), factor); });
  }

  // Two microbatches.
  void StepThatThrows() {
    const DTensor tokens = Rows(1);
    const auto rows = [](int) { return kRows; };
    trainer_.Step(/*microbatches=*/2, rows, [this, tokens](int part) {
      if (part == 1) Throw(absl::StatusCode::kInternal, "no loss");
      return model_.Loss(tokens, tokens).Mean();
    });
  }

  // What methods keep on this rank, but for the count of rounds.
  Values Kept() {
    Values kept;
    for (const auto& [name, tensor] : CommunicationState(model_)) {
      if (name != "communication.round") kept[name] = tensor.ToLocal().ToVector<double>();
    }
    return kept;
  }
  // What is trained, and the optimizer's state.
  Values Trained() {
    Values trained;
    for (const Parameter* parameter : model_.AllParameters()) {
      trained[parameter->path()] = parameter->at_rest().ToLocal().ToVector<double>();
    }
    for (const auto& [name, tensor] : sgd_.State()) trained[name] = tensor.ToLocal().ToVector<double>();
    return trained;
  }

 private:
  bool is_staged() const { return mesh_.FindAxis("pp") >= 0; }

  Plan PlanOf(bool is_sharded, const std::string& method) const {
    std::vector<PlanEntry> entries;
    if (is_staged()) entries.push_back({"blocks.*", Pipeline("pp")});
    if (is_sharded) entries.push_back({"blocks.*", FullyShard("dp")});
    entries.push_back({"", is_sharded ? FullyShard("dp") : DataParallel("dp")});
    entries.push_back({"", Communication(method)});
    return Plan(std::move(entries));
  }

  DTensor Rows(int64_t batch) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < kRows * kContext; ++i) {
      tokens.push_back(static_cast<int32_t>((i * i + batch * 5) % kVocabulary));
    }
    const Layout rows = Layout(/*ndim=*/2, mesh_.num_axes()).WithShard(mesh_.FindAxis("dp"), 0);
    return DTensor::Distribute(model_.context(), Tensor::FromValues<int32_t>({kRows, kContext}, tokens),
                               rows);
  }

  const DeviceMesh mesh_;
  Gpt model_;
  const IntrusivePtr<MeshContext> context_;
  Sgd sgd_;
  LossScale scale_;
  Trainer trainer_;
  std::unique_ptr<PipelineExecutor> pipeline_;
};

bool HasNonZero(const Values& values) {
  for (const auto& [name, all] : values) {
    for (const double value : all) {
      if (value != 0) return true;
    }
  }
  return false;
}

TEST(SkippedStepTest, AStepThatCountsNothingKeepsWhatIsYetToBeSent) {
  for (const Case& each : kCases) {
    for (const std::string method :
         {"onebit", "int8", "topk(0.1, momentum=0.5)", "randomk(0.2)", "powersgd(2)"}) {
      SCOPED_TRACE(absl::StrCat(method, " on ", each.ToString()));
      RunRanks(static_cast<int>(DeviceMesh::Parse(each.mesh).num_ranks()), [&](World& world) {
        Training training(world, each, method);
        for (int64_t batch = 1; batch <= 3; ++batch) training.Step(batch);
        training.trainer().Flush();
        const Values kept = training.Kept(), trained = training.Trained();
        EXPECT_TRUE(HasNonZero(kept));
        for (int i = 0; i < 2; ++i) {
          training.Step(/*batch=*/4, /*counts=*/false);
          const StepMetrics metrics = training.trainer().Flush().value();
          EXPECT_EQ(metrics.num_tokens, 0);
          EXPECT_EQ(metrics.loss, 0);
          EXPECT_EQ(metrics.grad_norm, 0);
          EXPECT_FALSE(metrics.updated);
          EXPECT_TRUE(training.Kept() == kept);
          EXPECT_TRUE(training.Trained() == trained);
        }
        training.Step(/*batch=*/5);
        EXPECT_TRUE(training.trainer().Flush().value().updated);
        EXPECT_FALSE(training.Kept() == kept);
        EXPECT_FALSE(training.Trained() == trained);
      });
    }
  }
}

// Methods that draw nothing know nothing of the steps between.
TEST(SkippedStepTest, TrainingGoesOnAsIfTheStepHadNotBeen) {
  for (const Case& each : kCases) {
    for (const std::string method : {"onebit", "topk(0.1, momentum=0.5)", "powersgd(2)"}) {
      SCOPED_TRACE(absl::StrCat(method, " on ", each.ToString()));
      RunRanks(static_cast<int>(DeviceMesh::Parse(each.mesh).num_ranks()), [&](World& world) {
        Training with(world, each, method);
        Training without(world, each, method);
        for (const int64_t batch : {1, 2, 0, 0, 3, 0, 4}) with.Step(batch, /*counts=*/batch > 0);
        for (const int64_t batch : {1, 2, 3, 4}) without.Step(batch);
        EXPECT_TRUE(with.Trained() == without.Trained());
        EXPECT_TRUE(with.Kept() == without.Kept());
      });
    }
  }
}

// The update of a step whose norm is finite is skipped for the sake of the one before it.
TEST(SkippedStepTest, TheStepAfterABadOneKeepsWhatIsYetToBeSent) {
  for (const bool is_sharded : {false, true}) {
    RunRanks(2, [&](World& world) {
      Training training(world, {.is_sharded = is_sharded}, "topk(0.1, momentum=0.5)");
      training.StepTimes(1);
      training.StepTimes(2);
      const Values trained = training.Trained();
      training.StepTimes(INFINITY);
      const Values kept = training.Kept();
      training.StepTimes(3);
      EXPECT_TRUE(training.Trained() == trained);
      EXPECT_TRUE(training.Kept() == kept);
      training.StepTimes(4);
      EXPECT_FALSE(training.Trained() == trained);
      EXPECT_FALSE(training.Kept() == kept);
    });
  }
}

// Of a step that is skipped anyway the second microbatch throws, when the first has been summed.
TEST(SkippedStepTest, AStepThatThrowsIsForgotten) {
  RunRanks(2, [](World& world) {
    Training with(world, {.is_sharded = true}, "topk(0.1, momentum=0.5)");
    Training without(world, {.is_sharded = true}, "topk(0.1, momentum=0.5)");
    for (Training* each : {&with, &without}) {
      each->StepTimes(1);
      each->StepTimes(INFINITY);
    }
    const Values kept = with.Kept();
    EXPECT_THROW(with.StepThatThrows(), Error);
    EXPECT_TRUE(with.Kept() == kept);
    for (Training* each : {&with, &without}) {
      each->trainer().Flush();
      each->StepTimes(2);
      EXPECT_TRUE(each->trainer().Flush().value().updated);
    }
    EXPECT_TRUE(with.Trained() == without.Trained());
    EXPECT_TRUE(with.Kept() == without.Kept());
    EXPECT_FALSE(with.Kept() == kept);
  });
}

}  // namespace
}  // namespace weft
