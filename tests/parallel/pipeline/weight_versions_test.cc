// Schedules that update within the step: every microbatch reads the weights that PipeDream's semantics give it, beside a
// single device that keeps all versions.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/nn/gpt.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/pipeline/delayed_weights.h"
#include "tests/parallel/pipeline/products.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

// Far beyond rounding.
constexpr Tolerance kSeen = {.gradient = 1e-6, .gradient_floor = 0, .loss = 1e-6, .grad_norm = 1e-6};

// Empty, or what differs.
std::string Difference(const TrainingResult& expected, const TrainingResult& actual,
                       const Tolerance& tolerance = kF64Tolerance) {
  return absl::StrJoin(Differences(expected, actual, tolerance), "\n");
}

TEST(WeightVersionsTest, EveryMicrobatchReadsItsOwn) {
  for (const char* name : {"pipedream", "pipedream_2bw"}) {
    for (const int ranks : {2, 4}) {
      const PipelineSchedule schedule = GenerateSchedule(name, {.ranks = ranks, .microbatches = 3 * ranks});
      const TrainingResult expected = WithDelayedWeights(schedule);
      EXPECT_EQ(Difference(expected, InStages(schedule, "")), "") << name << " of " << ranks;
      EXPECT_EQ(Difference(expected, InStages(schedule, ", dp=2")), "") << name << " fsdp of " << ranks;
    }
  }
}

// Beside every other parallelism, with dropout, and rows that the ranks do not divide.
TEST(WeightVersionsTest, WithWhatStandsBesideThem) {
  for (const char* name : {"pipedream", "pipedream_2bw"}) {
    for (const int ranks : {2, 4}) {
      const PipelineSchedule schedule = GenerateSchedule(name, {.ranks = ranks, .microbatches = 3 * ranks});
      const DelayedJob job = {.dropout = 0.1, .has_uneven_rows = true};
      const TrainingResult expected = WithDelayedWeights(schedule, job);
      const auto difference = [&](const std::string& beside, const Style& data = FullyShard("dp")) {
        return Difference(expected, InStages(schedule, beside, job, data));
      };
      const std::string what = absl::StrCat(name, " of ", ranks);
      EXPECT_EQ(difference(""), "") << what;
      EXPECT_EQ(difference(", dp=2", DataParallel("dp")), "") << what << ", ddp";
      EXPECT_EQ(difference(", dp=2"), "") << what << ", fsdp";
      EXPECT_EQ(difference(", tp=2"), "") << what << ", tp";
      EXPECT_EQ(difference(", dp=2, tp=2", DataParallel("dp")), "") << what << ", ddp and tp";
      EXPECT_EQ(difference(", dp=2, tp=2"), "") << what << ", fsdp and tp";
      DelayedJob split = job;
      split.splits_rows = true;
      for (const char* beside : {", tp=2", ", dp=2, tp=2"}) {
        EXPECT_EQ(Difference(expected, InStages(schedule, beside, split)), "")
            << what << beside << " sequence";
      }
      for (const DelayedJob& other : {DelayedJob{.has_uneven_rows = true}, DelayedJob{.dropout = 0.1}}) {
        EXPECT_NE(Difference(expected, WithDelayedWeights(schedule, other), kSeen), "") << what;
      }
    }
  }
}

// A mistake: microbatches read the newest weights where they should read those of the update before.
TEST(WeightVersionsTest, AnotherVersionIsSeen) {
  for (const int ranks : {2, 4}) {
    const PipelineSchedule schedule =
        GenerateSchedule("pipedream_2bw", {.ranks = ranks, .microbatches = 3 * ranks});
    PipelineSchedule newest = schedule;
    newest.versions = WeightVersions::kNewest;
    const TrainingResult result = InStages(newest, "");
    EXPECT_NE(Difference(WithDelayedWeights(schedule), result, kSeen), "") << ranks;
    EXPECT_EQ(Difference(WithDelayedWeights(newest), result), "") << ranks << ": that is all that it does";
  }
}

// A parameter that several stages have has no update of one of them.
TEST(WeightVersionsTest, ATiedHeadIsRefused) {
  for (const char* name : {"pipedream", "pipedream_2bw"}) {
    RunRanks(2, [&](World& world) {
      Gpt model({.vocabulary = 16, .context = 4, .layers = 2, .heads = 1, .dim = 8, .tied_head = true});
      Parallelize(model, world, DeviceMesh::Parse("pp=2"), {{"blocks.*", Pipeline("pp")}});
      const PipelineSchedule schedule = GenerateSchedule(name, {.ranks = 2, .microbatches = 4});
      EXPECT_EQ(MessageOf([&] { PipelineExecutor(model, schedule, {.update = [](int) {}}); }),
                absl::StrCat("schedule ", name,
                             " updates stage by stage; parameter 'wte.weight' is on several ", "stages"));
    });
  }
}

// Where a stage lies on several ranks, its gradients rest nowhere before REDUCE_GRAD.
TEST(WeightVersionsTest, UpdatesWantReducedGradients) {
  const PipelineSchedule schedule = GenerateSchedule("pipedream", {.ranks = 2, .microbatches = 4});
  const LoweringOptions unreduced = {.reduce_gradients = false};
  for (const bool is_lowered : {false, true}) {
    const PipelineSchedule given = is_lowered ? LowerSchedule(schedule, unreduced) : schedule;
    for (const int64_t replicas : {1, 2}) {
      RunRanks(static_cast<int>(2 * replicas), [&](World& world) {
        Products model(2);
        const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("pp=2, dp=", replicas));
        Parallelize(model, world, mesh, {{"layers.*", Pipeline("pp")}, {"layers.*", DataParallel("dp")}});
        const std::string message =
            MessageOf([&] { PipelineExecutor(model, given, {.lowering = unreduced, .update = [](int) {}}); });
        EXPECT_EQ(message, replicas == 1 ? "no error"
                                         : "schedule pipedream updates parameters within the step (OPT) of "
                                           "stages of 2 ranks each: expected REDUCE_GRAD before each OPT, "
                                           "got none");
      });
    }
  }
}

TEST(WeightVersionsTest, AVersionIsOfItsParameter) {
  RunRanks(1, [](World& world) {
    Products model(2);
    const auto context = Bind(world, DeviceMesh());
    Materialize(model, context);
    const std::vector<Parameter*> layers = model.AllParameters();
    const DTensor before = layers[0]->at_rest();
    const std::vector<float> values = before.ToLocal().ToVector<float>();
    layers[0]->Fork();
    layers[0]->Load(Full(context, DType::kF32, {kDim, kDim}, 3));
    EXPECT_EQ(before.ToLocal().ToVector<float>(), values);
    EXPECT_EQ(layers[0]->at_rest().ToLocal().ToVector<float>()[0], 3);
    const DTensor after = layers[0]->ExchangeValue(before);
    EXPECT_EQ(layers[0]->at_rest().ToLocal().ToVector<float>(), values);
    EXPECT_EQ(after.ToLocal().ToVector<float>()[0], 3);
    EXPECT_THAT(MessageOf([&] { layers[1]->ExchangeValue(before); }),
                testing::HasSubstr("': expected a version of its own value"));
  });
}

}  // namespace
}  // namespace weft
