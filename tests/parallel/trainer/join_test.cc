#include "parallel/join.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

constexpr int64_t kRows = 2;  // of a rank's batch
constexpr int64_t kContext = 6;
constexpr int32_t kVocabulary = 31;
constexpr int32_t kIgnored = -100;

// Rank `rank`'s batch of step `step`, from 1; some targets do not count.
std::vector<int32_t> TokensOf(int rank, int64_t step) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < kRows * kContext; ++i) {
    tokens.push_back(static_cast<int32_t>((i * 7 + step * 5 + rank * 11) % kVocabulary));
  }
  return tokens;
}
std::vector<int32_t> TargetsOf(int rank, int64_t step) {
  std::vector<int32_t> targets = TokensOf(rank, step + 17);
  for (int64_t i = 0; i <= rank + step; ++i) targets[i] = kIgnored;
  return targets;
}

struct Result {
  std::vector<double> parameters;
  std::vector<double> losses;
  int64_t num_steps = 0;
  double num_updates = 0;
};

// Trains a tiny GPT by AdamW, whose decay and moments any update too many would show.
class Training {
 public:
  Training(World& world, const DeviceMesh& mesh, const Plan& plan)
      : model_({.vocabulary = kVocabulary, .context = kContext, .layers = 2, .heads = 2, .dim = 8}),
        context_(Parallelize(model_, world, mesh, plan, {.dtype = DType::kF64})),
        adamw_(model_.AllParameters(), {.weight_decay = 0.1}),
        trainer_(model_, adamw_,
                 {.schedule = [](int64_t step) { return 1e-2 / static_cast<double>(step); },
                  .callbacks = {{.on_metrics = [this](Trainer&, const StepMetrics& metrics) {
                    EXPECT_TRUE(metrics.finite);
                    EXPECT_EQ(metrics.updated, metrics.num_tokens > 0);
                    if (metrics.updated) result_.losses.push_back(metrics.loss);
                  }}}}) {}

  Trainer& trainer() { return trainer_; }
  Gpt& model() { return model_; }
  const IntrusivePtr<MeshContext>& context() { return context_; }

  void Step(const DTensor& tokens, const DTensor& targets) {
    trainer_.Step(
        /*microbatches=*/1, [&](int) { return CountTargets(targets); },
        [this, tokens, targets](int) { return model_.Loss(tokens, targets); });
  }

  void Step(PipelineExecutor& pipeline, std::vector<Microbatch> parts) {
    trainer_.Step(pipeline, std::move(parts));
  }

  Result Finish(int64_t num_steps) {
    trainer_.Flush();
    result_.num_steps = num_steps;
    result_.num_updates = adamw_.updates().Item();
    for (const Parameter* parameter : model_.AllParameters()) {
      for (double value : parameter->at_rest().FullTensor().ToVector<double>()) {
        result_.parameters.push_back(value);
      }
    }
    return result_;
  }

 private:
  Result result_;
  Gpt model_;
  IntrusivePtr<MeshContext> context_;
  AdamW adamw_;
  Trainer trainer_;
};

// So many batches of each rank.
struct Data {
  std::vector<int64_t> num_batches;
  int64_t ignored_step = 0;  // none of whose targets counts on any rank

  std::vector<int32_t> Targets(int rank, int64_t step) const {
    return step == ignored_step ? std::vector<int32_t>(kRows * kContext, kIgnored) : TargetsOf(rank, step);
  }
};

// One rank, with the batches that there are at each step.
Result Alone(const Data& data) {
  const std::vector<int64_t>& num_batches = data.num_batches;
  Result result;
  RunRanks(1, [&](World& world) {
    Training training(world, DeviceMesh(), {});
    const int64_t num_steps = *std::max_element(num_batches.begin(), num_batches.end());
    for (int64_t step = 1; step <= num_steps; ++step) {
      std::vector<int32_t> tokens, targets;
      for (int rank = 0; rank < std::ssize(num_batches); ++rank) {
        if (step > num_batches[rank]) continue;
        for (int32_t token : TokensOf(rank, step)) tokens.push_back(token);
        for (int32_t target : data.Targets(rank, step)) targets.push_back(target);
      }
      const auto whole = [&](const std::vector<int32_t>& values) {
        const Shape shape = {std::ssize(values) / kContext, kContext};
        return DTensor::Distribute(training.context(), Tensor::FromValues<int32_t>(shape, values),
                                   Layout(/*ndim=*/2, /*num_axes=*/0));
      };
      training.Step(whole(tokens), whole(targets));
    }
    result = training.Finish(num_steps);
  });
  return result;
}

// Ranks of which some end before others.
Result Joined(const Data& data, const Plan& plan) {
  const std::vector<int64_t>& num_batches = data.num_batches;
  Result result;
  const bool is_hsdp = absl::StrContains(plan.ToString(), "replica");
  const DeviceMesh mesh =
      DeviceMesh::Parse(is_hsdp ? "replica=2,shard=2" : absl::StrCat("dp=", num_batches.size()));
  RunRanks(static_cast<int>(num_batches.size()), [&](World& world) {
    Training training(world, mesh, plan);
    const int rank = world.rank();
    int64_t asked = 0;
    const auto piece = [&](const std::vector<int32_t>& values) {
      return DTensor::FromLocal(training.context(), Tensor::FromValues<int32_t>({kRows, kContext}, values),
                                Layout::Parse(is_hsdp ? "[replica.shard, -]" : "[dp, -]", mesh),
                                {kRows * world.size(), kContext});
    };
    const auto next = [&] { return ++asked <= num_batches[rank]; };
    const auto step = [&](bool has_data) {
      EXPECT_EQ(has_data, asked <= num_batches[rank]);
      const std::vector<int32_t> nothing(kRows * kContext, kIgnored);
      training.Step(piece(TokensOf(rank, asked)), piece(has_data ? data.Targets(rank, asked) : nothing));
    };
    const int64_t num_steps = Join(training.trainer(), next, step);
    EXPECT_EQ(asked, num_batches[rank] + 1);
    EXPECT_EQ(training.trainer().step(), num_steps + 2);
    const Result mine = training.Finish(num_steps);
    if (rank == 0) result = mine;
  });
  return result;
}

// Steps, losses and parameters are those of one rank with all data, under every plan.
void ExpectOneRanks(const Data& data, int64_t num_updates) {
  std::vector<Plan> plans = {
      {{"", DataParallel("dp")}},
      {{"", DataParallel("dp", {.shard_state = true})}},
      {{"", DataParallel("dp", {.shard_gradient = true})}},
      {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}},
  };
  if (data.num_batches.size() == 4) {
    plans.push_back(
        {{"blocks.*", FullyShard("shard")}, {"", FullyShard("shard")}, {"", DataParallel("replica")}});
  }
  const Result alone = Alone(data);
  for (const Plan& plan : plans) {
    const Result joined = Joined(data, plan);
    EXPECT_EQ(joined.num_steps, alone.num_steps);
    EXPECT_EQ(joined.num_updates, static_cast<double>(num_updates));
    ASSERT_EQ(joined.losses.size(), alone.losses.size());
    for (size_t i = 0; i < alone.losses.size(); ++i) {
      EXPECT_NEAR(joined.losses[i], alone.losses[i], 1e-12) << plan.ToString() << " step " << i + 1;
    }
    ASSERT_EQ(joined.parameters.size(), alone.parameters.size());
    double worst = 0;
    for (size_t i = 0; i < alone.parameters.size(); ++i) {
      worst = std::max(worst, std::abs(joined.parameters[i] - alone.parameters[i]));
    }
    EXPECT_LE(worst, 1e-9) << plan.ToString();
  }
}

TEST(JoinTest, IsOneRankWithTheBatchesThatThereAre) {
  const std::vector<int64_t> cases[] = {{3, 1}, {1, 3}, {2, 2}, {0, 4}, {2, 0, 4}, {0, 0}, {3, 1, 0, 2}};
  for (const std::vector<int64_t>& num_batches : cases) {
    ExpectOneRanks({.num_batches = num_batches}, *std::max_element(num_batches.begin(), num_batches.end()));
  }
}

// A batch of which nothing counts is a batch: those behind it are asked for. Where rank 0 has ended, too.
TEST(JoinTest, ABatchThatCountsNothingIsNoEnd) {
  for (const std::vector<int64_t>& num_batches : {std::vector<int64_t>{4, 4}, {1, 4}, {4}}) {
    for (const int64_t ignored_step : {1, 2, 4}) {
      SCOPED_TRACE(absl::StrCat(num_batches.size(), " ranks, ", num_batches[0], ", step ", ignored_step));
      ExpectOneRanks({.num_batches = num_batches, .ignored_step = ignored_step}, /*num_updates=*/3);
    }
  }
}

// Two stages, of ranks that come in pairs with the same data; each row of a rank's batch is a microbatch.
Result JoinedStages(const Data& data, const Plan& plan) {
  Result result;
  RunRanks(4, [&](World& world) {
    Training training(world, DeviceMesh::Parse("pp=2,dp=2"), plan);
    PipelineExecutor pipeline(training.model(),
                              GenerateSchedule("1f1b", {.ranks = 2, .microbatches = kRows}));
    const IntrusivePtr<MeshContext>& context = training.model().context();
    const auto of_dp = static_cast<int>(context->coordinate()[context->mesh().AxisIndex("dp")]);
    int64_t asked = 0;
    const auto next = [&] { return ++asked <= data.num_batches[of_dp]; };
    const auto row = [&](const std::vector<int32_t>& values, int64_t i) {
      const auto begin = values.begin() + i * kContext;
      return DTensor::FromLocal(
          context, Tensor::FromValues<int32_t>({1, kContext}, std::vector<int32_t>(begin, begin + kContext)),
          Layout::Parse("[dp, -]", context->mesh()), {2, kContext});
    };
    const auto step = [&](bool has_data) {
      const std::vector<int32_t> tokens = TokensOf(of_dp, asked);
      const std::vector<int32_t> nothing(kRows * kContext, kIgnored);
      const std::vector<int32_t> targets = has_data ? data.Targets(of_dp, asked) : nothing;
      std::vector<Microbatch> parts;
      for (int64_t i = 0; i < kRows; ++i) {
        parts.push_back({.inputs = {row(tokens, i)}, .targets = row(targets, i), .batch_offset = 2 * i});
      }
      training.Step(pipeline, std::move(parts));
    };
    const Result mine = training.Finish(Join(training.trainer(), next, step));
    if (world.rank() == 0) result = mine;
  });
  return result;
}

TEST(JoinTest, OfAPipelineToo) {
  const Plan ddp = {{"blocks.*", Pipeline("pp")}, {"", DataParallel("dp")}};
  const Plan fsdp = {{"blocks.*", Pipeline("pp")}, {"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}};
  for (const std::vector<int64_t>& num_batches : {std::vector<int64_t>{3, 1}, {0, 2}}) {
    const Data data = {.num_batches = num_batches};
    const Result alone = Alone(data);
    for (const Plan& plan : {ddp, fsdp}) {
      const Result joined = JoinedStages(data, plan);
      EXPECT_EQ(joined.num_steps, alone.num_steps);
      EXPECT_EQ(joined.num_updates, alone.num_updates);
      EXPECT_THAT(joined.losses, testing::Pointwise(testing::DoubleNear(1e-12), alone.losses));
    }
  }
}

TEST(JoinTest, NeedsOneStepAtATime) {
  RunRanks(1, [](World& world) {
    Training training(world, DeviceMesh(), {});
    EXPECT_EQ(InvalidArgumentMessage([&] {
                Join(
                    training.trainer(), [] { return false; }, [](bool) {});
              }),
              "Join: expected one step of the trainer after step 0, which is at step 0 now");
  });
}

}  // namespace
}  // namespace weft
