#include "examples/gpt/gpt_data.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "dtensor/context/mesh_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/data/batches.h"
#include "runtime/data/sampling/sampler.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

constexpr int64_t kContext = 5;

// Token i is i, so that a window tells where it starts.
std::vector<int32_t> Count(int64_t n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

GptRun RunOn(const std::string& mesh, int64_t batch, int64_t microbatches, bool shuffle_epochs) {
  GptRun run;
  run.mesh = DeviceMesh::Parse(mesh);
  run.model.context = kContext;
  run.batch = batch;
  run.microbatches = microbatches;
  run.seed = 7;
  run.shuffle_epochs = shuffle_epochs;
  return run;
}

// What a run of `steps` steps has seen: the first tokens of all windows, in the order of the global batch; and its state.
struct Seen {
  std::vector<int64_t> starts;
  std::string state;
};

// `step`, `state`: of the run to go on after, unless the step is 0.
Seen Train(const GptRun& run, const std::vector<int32_t>& tokens, int steps, int64_t step = 0,
           const std::string& state = "") {
  Seen seen;
  std::mutex mutex;
  RunRanks(static_cast<int>(run.mesh.num_ranks()), [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, run.mesh);
    Layout layout(/*ndim=*/2, run.mesh.num_axes());
    const int dp = run.mesh.FindAxis("dp");
    if (dp >= 0) layout = layout.PlacedAlong(dp, Shard(0));
    GptData data(run, tokens, "a.txt", context, layout);
    if (step > 0) data.GoOnAfter(step, state);
    std::vector<int64_t> starts;
    for (int i = 0; i < steps; ++i) {
      const std::vector<GptBatch> parts = data.Next();
      EXPECT_EQ(std::ssize(parts), run.microbatches);
      EXPECT_GE(data.wait_s(), 0);
      int64_t rows = 0;
      for (const GptBatch& part : parts) {
        EXPECT_EQ(part.batch_offset, rows);
        const int64_t count = part.tokens.shape()[0];
        EXPECT_TRUE(count == run.batch / run.microbatches || count == run.batch / run.microbatches + 1);
        rows += count;
        const std::vector<int32_t> inputs = part.tokens.FullTensor().ToVector<int32_t>();
        const std::vector<int32_t> targets = part.targets.FullTensor().ToVector<int32_t>();
        for (size_t at = 0; at < inputs.size(); ++at) {
          EXPECT_EQ(targets[at], inputs[at] + 1);
          if (at % kContext == 0) starts.push_back(inputs[at]);
        }
      }
      EXPECT_EQ(rows, run.batch);
    }
    const std::lock_guard lock(mutex);
    if (!seen.starts.empty()) {
      EXPECT_EQ(seen.starts, starts) << "rank " << world.rank();
      EXPECT_EQ(seen.state, data.State());
    }
    seen = {.starts = starts, .state = data.State()};
  });
  return seen;
}

const char* const kMeshes[] = {"", "dp=2", "dp=2,tp=2", "dp=3"};

TEST(GptDataTest, ShuffledEpochsHaveEachWindowOnceOnEveryMesh) {
  const std::vector<int32_t> tokens = Count(kContext * 24 + 3);  // 24 windows, and 2 tokens that fill none
  for (const char* mesh : kMeshes) {
    for (const int64_t microbatches : {1, 2, 4}) {
      const Seen seen =
          Train(RunOn(mesh, /*batch=*/6, microbatches, /*shuffle_epochs=*/true), tokens, /*steps=*/8);
      std::vector<std::vector<int64_t>> epochs(2);
      for (size_t i = 0; i < 48; ++i) epochs[i / 24].push_back(seen.starts.at(i));
      EXPECT_NE(epochs[0], epochs[1]);
      for (std::vector<int64_t> epoch : epochs) {
        std::sort(epoch.begin(), epoch.end());
        for (int64_t w = 0; w < 24; ++w) EXPECT_EQ(epoch[static_cast<size_t>(w)], w * kContext) << mesh;
      }
      const ShuffledSampler sampler(24, 7);
      for (int64_t i = 0; i < 48; ++i) {
        EXPECT_EQ(seen.starts[static_cast<size_t>(i)], sampler.AtPosition(i) * kContext);
      }
      EXPECT_EQ(seen.state, R"json({"samples":48,"sampler":"shuffled(24, seed 7)"})json");
    }
  }
}

// The batch may not divide the epoch, and ranks and batches may change in between: no window twice, none left out.
TEST(GptDataTest, AResumeOnOtherRanksAndAnotherBatchReplaysNothing) {
  const std::vector<int32_t> tokens = Count(kContext * 31 + 1);
  const Seen first = Train(RunOn("dp=2", 4, 2, true), tokens, 5);
  const Seen second = Train(RunOn("dp=3", 9, 1, true), tokens, 2, /*step=*/5, first.state);
  const Seen third = Train(RunOn("", 12, 3, true), tokens, 2, /*step=*/7, second.state);
  std::vector<int64_t> starts = first.starts;
  for (const Seen* seen : {&second, &third}) {
    starts.insert(starts.end(), seen->starts.begin(), seen->starts.end());
  }
  const ShuffledSampler sampler(31, 7);
  ASSERT_EQ(starts.size(), 20u + 18u + 24u);
  for (size_t i = 0; i < starts.size(); ++i) {
    EXPECT_EQ(starts[i], sampler.AtPosition(static_cast<int64_t>(i)) * kContext) << i;
  }
}

TEST(GptDataTest, TheDefaultDrawsWhatTrainBatchesDoes) {
  const std::vector<int32_t> tokens = Count(200);
  const TrainBatches batches(tokens, kContext, /*seed=*/7);
  const auto expected = [&](int64_t first_step, int64_t steps, int64_t batch) {
    std::vector<int64_t> starts;
    for (int64_t step = first_step; step < first_step + steps; ++step) {
      const TokenBatch drawn = batches.Get(step, 0, batch);
      for (int64_t i = 0; i < batch; ++i) starts.push_back(drawn.inputs[static_cast<size_t>(i * kContext)]);
    }
    return starts;
  };
  for (const char* mesh : kMeshes) {
    const GptRun run = RunOn(mesh, 6, 2, /*shuffle_epochs=*/false);
    const Seen seen = Train(run, tokens, 3);
    EXPECT_EQ(seen.starts, expected(1, 3, 6)) << mesh;
    EXPECT_EQ(Train(run, tokens, 2, /*step=*/3, seen.state).starts, expected(4, 2, 6)) << mesh;
  }
  // By the step, also with another batch and from a file without a state.
  EXPECT_EQ(Train(RunOn("dp=2", 8, 1, false), tokens, 2, /*step=*/3).starts, expected(4, 2, 8));
}

TEST(GptDataTest, RefusesAPositionInOtherData) {
  const std::vector<int32_t> tokens = Count(100);
  const auto message = [&](const std::string& state) {
    return MessageOf([&] { Train(RunOn("", 2, 1, true), tokens, 1, /*step=*/4, state); });
  };
  EXPECT_THAT(message(""), testing::HasSubstr("does not say how many windows it has seen"));
  EXPECT_THAT(message("{}"), testing::HasSubstr("data position: broken"));
  EXPECT_THAT(message(R"json({"samples":8,"sampler":"shuffled(19, seed 8)"})json"),
              testing::HasSubstr(
                  "the position is one of shuffled(19, seed 8), this run's data is shuffled(19, seed 7)"));
}

}  // namespace
}  // namespace weft
