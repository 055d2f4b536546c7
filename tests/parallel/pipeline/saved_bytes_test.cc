// What every rank has saved for backward, read from its allocator at every action of schedules of several chunks, in a loop and
// in a V: as many bytes as its list says.

#include <algorithm>
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

using Kind = ActionKind;

constexpr int64_t kActivation = kRows * kDim * 8;

// What an action adds to what is saved, where each stage is one product: its input x and the gradient that arrives, dY, wait for
// W from their arrival on, what it makes goes when it has been sent, or is the x of the next stage, if that is here. The first
// stage's x is the program's, and a dY that was made here counts as a gradient. `loss`: what the loss keeps for I.
int64_t Change(const PipelineSchedule& schedule, const PipelineAction& action, int64_t loss) {
  const bool is_last = action.stage + 1 == schedule.num_stages();
  const int64_t x = action.stage > 0 ? kActivation : 0;
  const bool receives =
      !is_last && schedule.stage_rank[action.stage] != schedule.stage_rank[action.stage + 1];
  const int64_t dy = receives ? kActivation : 0;
  switch (action.kind) {
    case Kind::kRecvForward:
      return x;
    case Kind::kForward:
      return is_last ? loss : kActivation;
    case Kind::kSendForward:
      return -kActivation;
    case Kind::kRecvBackward:
      return dy;
    case Kind::kInputGradient:
      return is_last ? -loss : 0;
    case Kind::kWeightGradient:
      return -x - dy;
    case Kind::kBackward:
      return (is_last ? -loss : 0) - x - dy;
    default:
      return 0;
  }
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
    int64_t before = 0, expected = 0, loss = 0, most = 0;
    std::string mistake;
    const auto look = [&](const PipelineAction& action, bool begins) {
      if (begins || !mistake.empty()) return;
      const bool has_loss = action.kind == Kind::kForward && action.stage + 1 == schedule.num_stages();
      if (has_loss && loss == 0) loss = read() - before - expected;
      expected += Change(schedule, action, loss);
      most = std::max(most, expected);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(keeps ? 1 : 20);
      while (read() - before != expected && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      const int64_t bytes = read() - before;
      if (bytes == expected) return;
      mistake = absl::StrCat(name, ": behind ", action.ToString(), " of rank ", world.rank(), " are ", bytes,
                             " bytes, expected ", expected);
    };
    bool looks = false;
    PipelineExecutor pipeline(
        model, schedule, {.rendezvous = true, .on_action = [&](const PipelineAction& action, bool begins) {
                            if (looks) look(action, begins);
                          }});
    const std::vector<Microbatch> parts = ProductParts(model.context(), schedule.num_microbatches);
    const DTensor total = Full(model.context(), DType::kF64, Shape(), 1);
    pipeline.Run(parts, total);  // gradients have their memory from now on
    kept.clear();
    before = read();
    looks = true;
    pipeline.Run(parts, total);
    const std::lock_guard<std::mutex> lock(mutex);
    if (!mistake.empty()) wrong.push_back(mistake);
    if (mistake.empty() && (world.rank() == 0 || is_v)) {
      EXPECT_GE(most, 3 * kActivation) << name;
    }
    EXPECT_EQ(mistake.empty() ? expected : 0, 0) << name << ": not all is gone at the end";
  });
  return wrong;
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
