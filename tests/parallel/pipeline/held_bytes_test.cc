// What every rank holds for backward: by hand, and as its allocator has it at every action of every schedule.

#include "parallel/pipeline/held_bytes.h"

#include <chrono>
#include <cstdint>
#include <memory>
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
#include "parallel/pipeline/checker.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/run_order.h"
#include "parallel/styles.h"
#include "runtime/device/allocator.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

constexpr int64_t kHidden = 24;

// Microbatches that differ in size.
const std::vector<int64_t> kRowsOf = {4, 2, 6, 3, 4, 5};

// x [r, d] -> gelu(x U) V: its W reads what F had and what I has made.
class Bend : public Module {
 public:
  Bend(Module* parent, std::string name)
      : Module(parent, std::move(name)),
        up(this, "up", kDim, kHidden, {.bias = false}),
        down(this, "down", kHidden, kDim, {.bias = false}) {}

  Linear up;
  Linear down;

 protected:
  DTensor Forward(const DTensor& x) override { return down(Gelu(up(x))); }
};

class Bends : public SegmentedModule {
 public:
  explicit Bends(int count) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(std::make_unique<Bend>(this, absl::StrCat("layers.", i)));
    }
  }
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    return MseLoss(outputs[0], targets);
  }

  std::vector<std::unique_ptr<Bend>> layers;

 protected:
  std::vector<Segment> MakeSegments() override {
    std::vector<Segment> chain;
    for (const auto& layer : layers) {
      chain.push_back({.modules = {layer.get()}, .cost = 1, .run = [&layer](const DTensors& x) -> DTensors {
                         return {(*layer)(x[0])};
                       }});
    }
    return chain;
  }
};

// What a stage of one Bend has. The program's own input of the first stage is no part of it.
StageBytes BytesOfBend(int stage, int microbatch, int num_stages) {
  const int64_t rows = kRowsOf[microbatch];
  const int64_t outer = rows * kDim * 8;      // x, y, and their gradients
  const int64_t hidden = rows * kHidden * 8;  // h = x U, a = gelu(h), and their gradients
  const bool is_last = stage + 1 == num_stages;
  StageBytes bytes = {
      .saved = 2 * hidden,             // h, a
      .kept = 2 * outer + 2 * hidden,  // x and dh for U, a and dy for V
      .input = outer,
      .gradient = outer,
  };
  if (is_last) {
    bytes.gradient = 0;
    bytes.saved += outer + kAllocationGranule;  // the distance from the targets, the loss
  }
  if (stage == 0) {
    bytes.input = 0;
    bytes.kept = outer + 2 * hidden;  // no gradient of an input is asked for: I leaves all to W
  }
  return bytes;
}

// The first action of each rank behind which the allocator has other bytes than the certificate. `keeps`: a mistake, that what
// layers make stays until the end of the step. Transfers meet where they stand, so that what is sent has left; but
// who carried it may let go a moment later, so a reading counts when it is as expected.
std::vector<std::string> WrongReadings(const std::string& name, int ranks, int chunks = 0,
                                       bool keeps = false) {
  std::vector<std::string> wrong;
  std::mutex mutex;
  RunRanks(ranks, [&](World& world) {
    const PipelineSchedule schedule = GenerateSchedule(
        name, {.ranks = ranks, .chunks = chunks, .microbatches = static_cast<int>(kRowsOf.size())});
    const int num_stages = schedule.num_stages();
    Bends model(num_stages);
    const bool is_v = schedule.stage_rank.back() == 0;
    const Plan plan = {{"layers.*", Pipeline("pp", {.chunks = schedule.num_chunks(),
                                                    .order = is_v ? StageOrder::kV : StageOrder::kLoop,
                                                    .sizes = std::vector<int64_t>(num_stages, 1)})}};
    Parallelize(model, world, DeviceMesh::Parse(absl::StrCat("pp=", ranks)), plan, {.dtype = DType::kF64});
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
    // What forward and backward have made and is there, but for the gradients of parameters.
    const auto read = [&] {
      const auto& by_kind = world.allocator()->by_kind();
      int64_t bytes = by_kind[MemoryKind::kSaved].live + by_kind[MemoryKind::kGrad].live;
      for (const Parameter* parameter : model.AllParameters()) {
        if (parameter->grad().defined()) bytes -= parameter->grad().shape().num_elements() * 8;
      }
      return bytes;
    };
    std::vector<PipelineAction> order;
    std::vector<int64_t> expected;  // behind each action
    size_t next = 0;
    std::string mistake;
    const auto look = [&](const PipelineAction& action, bool begins) {
      if (begins || !mistake.empty()) return;
      const size_t index = next++;
      if (index >= order.size() || !(order[index] == action)) {
        mistake =
            absl::StrCat(name, ": action ", index, " of rank ", world.rank(), " is ", action.ToString());
        return;
      }
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(keeps ? 200 : 20000);
      while (read() != expected[index] && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      const int64_t found = read();
      if (found == expected[index]) return;
      mistake = absl::StrCat(name, ": behind ", action.ToString(), " of rank ", world.rank(), " are ", found,
                             " bytes, expected ", expected[index]);
    };
    PipelineExecutor* running = nullptr;
    PipelineExecutor pipeline(model, schedule,
                              {
                                  .update =
                                      [&](int stage) {
                                        for (Parameter* parameter : running->ParametersOf(stage)) {
                                          parameter->ClearGrad();
                                        }
                                      },
                                  .rendezvous = true,
                                  .on_action = look,
                              });
    running = &pipeline;
    const ScheduleCertificate certificate = CheckSchedule(
        pipeline.schedule(), /*times=*/{},
        [num_stages](int stage, int microbatch) { return BytesOfBend(stage, microbatch, num_stages); });
    ASSERT_TRUE(certificate.ok) << certificate.error;
    expected = certificate.bytes.after[world.rank()];
    order = RunOrder(pipeline.schedule().ranks[world.rank()]);
    pipeline.Run(ProductParts(model.context(), kRowsOf), One(model.context()));
    const std::lock_guard<std::mutex> lock(mutex);
    if (!mistake.empty()) wrong.push_back(mistake);
    EXPECT_EQ(expected.size(), order.size());
    EXPECT_EQ(expected.back(), 0) << name << ": not all is to be gone at the end";
    EXPECT_TRUE(!mistake.empty() || next == order.size()) << name << ": " << next << " actions ran";
  });
  return wrong;
}

StageBytes ByHand(int stage, int microbatch) {
  const int64_t activation = microbatch == 0 ? 1000 : 3000;
  return {
      .saved = 10, .kept = 100, .input = stage > 0 ? activation : 0, .gradient = stage == 0 ? activation : 0};
}

// Rank 0 has both microbatches before the first gradient comes, rank 1 one at a time. What F of rank 0 makes for the other, and
// the gradient beside what its B reads, are there at a peak.
TEST(HeldBytesTest, OfListsOfComputing) {
  const PipelineSchedule schedule = GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2});
  const HeldBytes expected = {.after = {{10, 20, 10, 0}, {1010, 0, 3010, 0}}, .peak = {3020, 3010}};
  EXPECT_EQ(HeldBytesOf(schedule, ByHand), expected);
}

// The same lists, where transfers are actions: what has come waits, and so does what is to go.
TEST(HeldBytesTest, OfLoweredLists) {
  const PipelineSchedule schedule = LowerSchedule(GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2}),
                                                  {.whole_stages = 0, .reduce_gradients = false});
  EXPECT_EQ(schedule.ToString(),
            "rank 0: 0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "rank 1: 1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  const HeldBytes expected = {
      .after = {{1010, 10, 3020, 20, 1020, 10, 3010, 0}, {1000, 1010, 4010, 4000, 3000, 3010, 3000, 0}},
      .peak = {3020, 4010}};
  EXPECT_EQ(HeldBytesOf(schedule, ByHand), expected);
}

// From I to W is there what I leaves, and between two stages of a rank what they hand each other.
TEST(HeldBytesTest, OfGradientsInTwo) {
  PipelineSchedule schedule = {.num_microbatches = 1, .stage_rank = {0, 0}};
  schedule.ranks.resize(1);
  for (const char* text : {"0F0", "1F0", "1I0", "1W0", "0I0", "0W0"}) {
    schedule.ranks[0].push_back(*ScheduleItem::Parse(text));
  }
  const HeldBytes expected = {.after = {{1010, 1020, 1110, 1010, 100, 0}}, .peak = {1110}};
  EXPECT_EQ(HeldBytesOf(schedule, ByHand), expected);
}

TEST(HeldBytesTest, CertificatesHaveThemWhereTheyAreAskedFor) {
  const PipelineSchedule schedule = GenerateSchedule("zbv", {.ranks = 3, .microbatches = 6});
  EXPECT_EQ(CheckSchedule(schedule, {}, ByHand).bytes, HeldBytesOf(schedule, ByHand));
  EXPECT_EQ(CheckSchedule(schedule).bytes, HeldBytes());
}

TEST(RunOrderTest, WhatAPairSendsGoesAtOnce) {
  std::vector<ScheduleItem> list;
  for (const char* text : {"0F0", "(0F1;3B0)OVERLAP_F_B", "0SEND_F1", "3SEND_B0", "3B1"}) {
    list.push_back(*ScheduleItem::Parse(text));
  }
  std::vector<std::string> order;
  for (const PipelineAction& action : RunOrder(list)) order.push_back(action.ToString());
  EXPECT_EQ(absl::StrJoin(order, ","), "0F0,0F1,0SEND_F1,3B0,3SEND_B0,3B1");
}

TEST(HeldBytesTest, OfEveryRankAtEveryAction) {
  for (const ScheduleGenerator& generator : AllSchedules()) {
    EXPECT_EQ(absl::StrJoin(WrongReadings(generator.name, /*ranks=*/2), "\n"), "");
    EXPECT_EQ(absl::StrJoin(WrongReadings(generator.name, /*ranks=*/3), "\n"), "");
  }
  EXPECT_EQ(absl::StrJoin(WrongReadings("interleaved", /*ranks=*/2, /*chunks=*/3), "\n"), "");
}

TEST(HeldBytesTest, WhatGoesAtTheEndOfTheStepIsSeen) {
  for (const char* name : {"1f1b", "interleaved", "zbv"}) {
    EXPECT_THAT(absl::StrJoin(WrongReadings(name, /*ranks=*/2, /*chunks=*/0, /*keeps=*/true), "\n"),
                testing::HasSubstr(absl::StrCat(name, ": behind ")));
  }
}

}  // namespace
}  // namespace weft
