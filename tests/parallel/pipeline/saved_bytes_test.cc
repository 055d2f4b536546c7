// What every rank has saved for backward, read from its allocator at every action of schedules of several chunks, in a loop and
// in a V: as many bytes as its list says.

#include "parallel/pipeline/saved_bytes.h"

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

constexpr int64_t kValueBytes = 16;

// Microbatches that differ in size.
const std::vector<int64_t> kRowsOf = {4, 2, 6, 3, 4, 5};

int64_t ActivationBytes(int microbatch) { return kRowsOf[microbatch] * kDim * 8; }

// What the loss leaves for I: the distance from the targets; and its value.
int64_t LossBytes(int microbatch) { return ActivationBytes(microbatch) + kValueBytes; }

// Each stage is one product: W reads its input x and the gradient that arrives, dY, and nothing else is saved but by the
// loss. The first stage's x is the program's.
SavedBytes Expected(const PipelineSchedule& schedule) {
  const int last = schedule.num_stages() - 1;
  return SavedBytesOf(schedule, [&](int stage, int microbatch) {
    const int64_t activation = ActivationBytes(microbatch);
    return StageBytes{.inputs = stage > 0 ? activation : 0,
                      .output_gradients = stage < last ? activation : 0,
                      .saved = stage < last ? 0 : LossBytes(microbatch)};
  });
}

// The first action of each rank behind which the allocator has other bytes than its list says. `keeps`: a mistake, that what
// layers make stays until the end of the step. Transfers meet where they stand, so that what is sent has left; but who
// carried it may let go a moment later, so a reading counts when it is as expected.
std::vector<std::string> WrongReadings(const std::string& name, int chunks, bool keeps = false) {
  std::vector<std::string> wrong;
  std::mutex mutex;
  RunRanks(2, [&](World& world) {
    const PipelineSchedule schedule =
        GenerateSchedule(name, {.ranks = 2, .chunks = chunks, .microbatches = 6});
    Products model(schedule.num_stages());
    const bool is_v = schedule.stage_rank.back() == 0;
    const Plan plan = {
        {"layers.*", Pipeline("pp", {.chunks = schedule.num_chunks(),
                                     .order = is_v ? StageOrder::kV : StageOrder::kLoop,
                                     .sizes = std::vector<int64_t>(schedule.num_stages(), 1)})}};
    Parallelize(model, world, DeviceMesh::Parse("pp=2"), plan, {.dtype = DType::kF64});
    std::vector<DTensor> kept;
    std::vector<HookHandle> hooks;
    for (const auto& layer : model.layers) {
      if (keeps) {
        hooks.push_back(layer->AddAfterForward([&](Module&, const DTensor& y) {
          kept.push_back(y.Detach());
          return DTensor();
        }));
      }
    }
    const auto read = [&] { return world.allocator()->by_kind()[MemoryKind::kSaved].live; };
    int64_t before = 0;
    size_t next = 0;
    std::vector<int64_t> expected;  // behind each action
    std::string mistake;
    const auto look = [&](const PipelineAction& action, bool begins) {
      if (begins) return;
      const int64_t bytes = expected.at(next++);
      if (!mistake.empty()) return;
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(keeps ? 1 : 20);
      while (read() - before != bytes && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      const int64_t found = read() - before;
      if (found == bytes) return;
      mistake = absl::StrCat(name, ": behind ", action.ToString(), " of rank ", world.rank(), " are ", found,
                             " bytes, expected ", bytes);
    };
    bool looks = false;
    PipelineExecutor pipeline(
        model, schedule, {.rendezvous = true, .on_action = [&](const PipelineAction& action, bool begins) {
                            if (looks) look(action, begins);
                          }});
    expected = Expected(pipeline.schedule()).after[world.rank()];
    const std::vector<Microbatch> parts = ProductParts(model.context(), kRowsOf);
    const DTensor total = Full(model.context(), DType::kF64, Shape(), 1);
    pipeline.Run(parts, total);  // gradients have their memory from now on
    kept.clear();
    before = read();
    looks = true;
    pipeline.Run(parts, total);
    const std::lock_guard<std::mutex> lock(mutex);
    if (!mistake.empty()) wrong.push_back(mistake);
    EXPECT_EQ(next, expected.size());
    EXPECT_EQ(expected.back(), 0) << name << ": not all is to be gone at the end";
  });
  return wrong;
}

// By hand: rank 0 has both microbatches before the first gradient comes, rank 1 one at a time.
TEST(SavedBytesTest, OfListsOfComputing) {
  const PipelineSchedule schedule = GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2});
  const auto bytes = [](int stage, int microbatch) {
    const int64_t activation = microbatch == 0 ? 1000 : 3000;
    return StageBytes{.inputs = stage == 1 ? activation : 0,
                      .output_gradients = stage == 0 ? activation : 0,
                      .saved = 10,
                      .kept = 100};
  };
  const SavedBytes expected = {.after = {{110, 220, 110, 0}, {1110, 0, 3110, 0}}, .peak = {3220, 3110}};
  EXPECT_EQ(SavedBytesOf(schedule, bytes), expected);
}

// What a rank has from I to W is what W reads.
TEST(SavedBytesTest, OfGradientsInTwo) {
  PipelineSchedule schedule = {.num_microbatches = 1, .stage_rank = {0}};
  for (const ActionKind kind :
       {ActionKind::kForward, ActionKind::kInputGradient, ActionKind::kWeightGradient}) {
    schedule.ranks.resize(1);
    schedule.ranks[0].push_back(PipelineAction{kind, 0, 0});
  }
  const SavedBytes bytes =
      SavedBytesOf(schedule, [](int, int) { return StageBytes{.saved = 7, .kept = 30, .deferred = 200}; });
  EXPECT_EQ(bytes, (SavedBytes{.after = {{37, 230, 0}}, .peak = {237}}));
}

TEST(SavedBytesTest, OfEveryRankAtEveryAction) {
  for (const char* name :
       {"interleaved", "looped_bfs", "interleaved_zb", "zbv", "dualpipev", "v_half", "v_min"}) {
    EXPECT_EQ(absl::StrJoin(WrongReadings(name, /*chunks=*/2), "\n"), "");
  }
  EXPECT_EQ(absl::StrJoin(WrongReadings("interleaved", /*chunks=*/3), "\n"), "");
}

TEST(SavedBytesTest, WhatGoesAtTheEndOfTheStepIsSeen) {
  for (const char* name : {"interleaved", "zbv"}) {
    EXPECT_THAT(absl::StrJoin(WrongReadings(name, /*chunks=*/2, /*keeps=*/true), "\n"),
                testing::HasSubstr(absl::StrCat(name, ": behind ")));
  }
}

}  // namespace
}  // namespace weft
