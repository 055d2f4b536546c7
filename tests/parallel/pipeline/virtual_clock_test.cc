// The executor on a virtual clock that its messages carry: activations and gradients are the times at which they were made,
// so that ranks come to the times of the certificate, exactly; and idle as long, and hold as much, as it says.

#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/autograd/local_function.h"
#include "dtensor/functions.h"
#include "dtensor/nn/segmented_module.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/checker.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

// A rank's. What it begins with something that was made at `ready` begins then, or when the rank is free.
struct VirtualClock {
  double now = 0;
  double idle = 0;  // between the first thing that it did and now
  bool has_begun = false;

  double Run(double ready, double seconds) {
    if (std::exchange(has_begun, true)) idle += std::max(0.0, ready - now);
    return now = std::max(now, ready) + seconds;
  }
};

// How many of a kind are alive on a rank, and the most that there were. What the tape keeps of a call holds one.
struct Holdings {
  int live = 0;
  int most = 0;

  std::shared_ptr<void> Take() {
    most = std::max(most, ++live);
    return std::shared_ptr<void>(nullptr, [this](void*) { --live; });
  }
};

// A rank's.
struct Rank {
  VirtualClock clock;
  Holdings to_i;  // of F, kept for I
  Holdings to_w;  // of F, kept for W
};

Tensor Time(double seconds) { return Tensor::FromValues<double>({1}, {seconds}); }

// Of a piece with one element, a time.
DTensor OfTime(const char* name, const DTensor& x, std::function<Tensor(double)> forward,
               std::function<Tensor(double)> backward) {
  const auto apply = [](const std::function<Tensor(double)>& function, const Tensor& time) {
    return std::vector<Tensor>{function(time.ToVector<double>()[0])};
  };
  const LocalFunction function = {
      .name = name,
      .operands = {{.layout = x.layout(), .gradient = x.layout()}},
      .outputs = {{.type = x.type(), .layout = x.layout(), .gradient = x.layout()}},
      .forward = [=](absl::Span<const Tensor> operands) { return apply(forward, operands[0]); },
      .backward = [=](const LocalGradients& of) { return apply(backward, of.gradients[0]); },
  };
  return CallLocal(function, {x})[0];
}

// Takes its time, from its chunk's share of F, I and W.
class Timed : public Module {
 public:
  Timed(Module* parent, std::string name, Rank& rank, const ScheduleTimes& times)
      : Module(parent, std::move(name)),
        weight(this, "weight", {.shape = {1}, .initializer = Initializer::Constant(0)}),
        rank_(rank),
        times_(times) {}

  Parameter weight;

 protected:
  DTensor Forward(const DTensor& x) override {
    const DTensor through = OfTime(
        "F and I", x, [this](double ready) { return Time(rank_.clock.Run(ready, times_.forward)); },
        // The node stays until W, but what it has kept goes with I.
        [this, held = std::make_shared<std::shared_ptr<void>>(rank_.to_i.Take())](double ready) {
          held->reset();
          return Time(rank_.clock.Run(ready, times_.input_gradient));
        });
    // Recorded later, so that in B it runs first, and what is handed back is the time at B's end.
    const DTensor beside = OfTime(
        "W", weight.Value(), [](double) { return Time(0); },
        [this, held = rank_.to_w.Take()](double ready) {
          rank_.clock.Run(ready, times_.weight_gradient);
          return Time(0);
        });
    return Add(through, beside);
  }

 private:
  Rank& rank_;
  const ScheduleTimes times_;
};

class TimedModel : public SegmentedModule {
 public:
  TimedModel(int num_stages, Rank& rank, const ScheduleTimes& of_chunk)
      : entry(this, "entry", rank, of_chunk) {
    for (int i = 0; i < num_stages; ++i) {
      layers.push_back(std::make_unique<Timed>(this, absl::StrCat("layers.", i), rank, of_chunk));
    }
  }
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    return {.sum = Sum(Scale(outputs[0], 0)), .count = Full(targets.context(), DType::kF64, Shape(), 1)};
  }

  Timed entry;  // of it the weight alone, so that there is a gradient to go back to
  std::vector<std::unique_ptr<Timed>> layers;

 protected:
  std::vector<Segment> MakeSegments() override {
    std::vector<Segment> chain;
    chain.push_back({.modules = {&entry}, .cost = 0, .run = [this](const DTensors& x) -> DTensors {
                       return {Add(x[0], entry.weight.Value())};
                     }});
    for (const auto& each : layers) {
      chain.push_back({.modules = {each.get()}, .cost = 1, .run = [&each](const DTensors& x) -> DTensors {
                         return {(*each)(x[0])};
                       }});
    }
    return chain;
  }
};

// By rank.
struct Figures {
  std::vector<double> ends;  // of the last action that computes
  std::vector<double> idle;  // between the first and the last
  std::vector<int> peak_w = {}, peak_i = {};

  double makespan() const { return *std::max_element(ends.begin(), ends.end()); }
  bool operator==(const Figures&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Figures& figures) {
  return out << "ends " << absl::StrJoin(figures.ends, " ") << ", idle " << absl::StrJoin(figures.idle, " ")
             << ", peak_w " << absl::StrJoin(figures.peak_w, " ") << ", peak_i "
             << absl::StrJoin(figures.peak_i, " ");
}

// What the executor comes to.
Figures FiguresOf(const PipelineSchedule& schedule, const ScheduleTimes& times) {
  const int num_ranks = schedule.num_ranks();
  const int chunks = schedule.num_chunks();
  std::vector<Rank> ranks(num_ranks);
  RunRanks(num_ranks, [&](World& world) {
    Rank& rank = ranks[world.rank()];
    TimedModel model(schedule.num_stages(), rank,
                     {.forward = times.forward / chunks,
                      .input_gradient = times.input_gradient / chunks,
                      .weight_gradient = times.weight_gradient / chunks});
    const bool is_v = chunks == 2 && schedule.stage_rank == VPlacement(num_ranks);
    const Plan plan = {
        {"layers.*", Pipeline("pp", {.chunks = chunks,
                                     .order = is_v ? StageOrder::kV : StageOrder::kLoop,
                                     .sizes = std::vector<int64_t>(schedule.num_stages(), 1)})}};
    const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("pp=", num_ranks));
    Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, schedule);
    std::vector<Microbatch> parts;
    for (int i = 0; i < schedule.num_microbatches; ++i) {
      const DTensor begin = Full(model.context(), DType::kF64, {1}, 0);
      parts.push_back({.inputs = {begin}, .targets = begin});
    }
    pipeline.Run(parts, Full(model.context(), DType::kF64, Shape(), 1));
    EXPECT_EQ(rank.to_i.live, 0);
    EXPECT_EQ(rank.to_w.live, 0);
  });
  Figures figures;
  for (const Rank& rank : ranks) {
    figures.ends.push_back(rank.clock.now);
    figures.idle.push_back(rank.clock.idle);
    figures.peak_w.push_back(rank.to_w.most);
    figures.peak_i.push_back(rank.to_i.most);
  }
  return figures;
}

// What the certificate says. Pairs run one part after the other, F first: at their peaks ranks hold what they would if the parts
// overlapped.
Figures CertificateOf(const PipelineSchedule& schedule, const ScheduleTimes& times) {
  const ScheduleCertificate certificate = CheckSchedule(schedule, times);
  Figures figures;
  figures.peak_w = certificate.holdings.peak_w;
  figures.peak_i = certificate.holdings.peak_i;
  for (const std::vector<TimedAction>& list : certificate.timeline.ranks) {
    double end = list.front().start, idle = 0;
    for (const TimedAction& action : list) {
      idle += std::max(0.0, action.start - end);
      end = std::max(end, action.end);
    }
    figures.ends.push_back(end);
    figures.idle.push_back(idle);
  }
  EXPECT_EQ(figures.makespan(), certificate.timeline.makespan);
  return figures;
}

TEST(VirtualClockTest, RanksEndAndIdleAndHoldAsTheCertificateSays) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "looped_bfs", "zb_h1", "zb_h2", "interleaved_zb",
                           "zbv", "dualpipev", "v_half", "v_min"}) {
    for (const ScheduleTimes& times :
         {ScheduleTimes{1, 1, 1}, ScheduleTimes{2, 2, 1}, ScheduleTimes{2, 4, 2}}) {
      for (const int ranks : {2, 4}) {
        const PipelineSchedule schedule = GenerateSchedule(name, {.ranks = ranks, .microbatches = 2 * ranks});
        EXPECT_EQ(FiguresOf(schedule, times), CertificateOf(schedule, times))
            << name << " on " << ranks << " ranks, F = " << times.forward << ", I = " << times.input_gradient;
      }
    }
  }
}

struct Row {
  const char* name;
  int chunks;
  double equal;    // F, I, W = 1, 1, 1
  double short_w;  // 2, 2, 1
  double long_i;   // 2, 3, 2
  std::vector<int> peak_w;
  std::vector<int> peak_i = {};
  std::vector<double> idle = {};  // of (1, 1, 1)
};

void ExpectRow(const Row& row, int ranks, int microbatches) {
  const PipelineSchedule schedule =
      GenerateSchedule(row.name, {.ranks = ranks, .chunks = row.chunks, .microbatches = microbatches});
  const Figures equal = FiguresOf(schedule, {1, 1, 1});
  EXPECT_EQ(equal.makespan(), row.equal) << row.name;
  if (!row.idle.empty()) {
    EXPECT_EQ(equal.idle, row.idle) << row.name;
  }
  EXPECT_EQ(equal.peak_w, row.peak_w) << row.name;
  if (!row.peak_i.empty()) {
    EXPECT_EQ(equal.peak_i, row.peak_i) << row.name;
  }
  EXPECT_EQ(FiguresOf(schedule, {2, 2, 1}).makespan(), row.short_w) << row.name;
  EXPECT_EQ(FiguresOf(schedule, {2, 3, 2}).makespan(), row.long_i) << row.name;
}

// Makespans, idle times and peaks computed independently, in exact fractions, by another simulator: the tables that
// checker_test.cc holds the checker to, here by what runs.
TEST(VirtualClockTest, GoldenTableOfFourRanks) {
  const std::vector<int> v4 = {4, 4, 4, 4}, v8 = {8, 8, 8, 8}, v9 = {9, 9, 9, 9}, v16 = {16, 16, 16, 16};
  const std::vector<int> falling = {4, 3, 2, 1}, two = {11, 9, 7, 5}, four = {19, 17, 15, 13};
  const std::vector<Row> rows = {
      {"gpipe", 1, 33, 55, 77, v8, v8, {9, 6, 3, 0}},
      {"1f1b", 1, 33, 55, 77, falling, falling, {9, 6, 3, 0}},
      {"interleaved", 2, 28.5, 47.5, 66.5, two, two, {4.5, 3, 1.5, 0}},
      {"interleaved", 4, 26.25, 43.75, 61.25, four, four, {2.25, 1.5, .75, 0}},
      {"looped_bfs", 2, 28.5, 47.5, 66.5, v16, v16, {4.5, 3, 1.5, 0}},
      {"zb_h1", 1, 27, 49, 65, v4, falling, {3, 2, 1, 0}},
      {"interleaved_zb", 2, 25.5, 44.5, 60.5, v8, {8, 7, 6, 5}, {1.5, 1, .5, 0}},
      {"zb_h2", 1, 27, 46, 62, {7, 7, 7, 7}, {7, 5, 3, 1}, {0, 0, 0, 0}},
      {"zbv", 2, 25.5, 43, 60.5, v8, v8, {0, 0, 0, 0}},
      {"dualpipev", 2, 25.5, 44.5, 61, v9, v9, {1.5, 1, .5, 0}},
  };
  for (const Row& row : rows) ExpectRow(row, /*ranks=*/4, /*microbatches=*/8);
}

TEST(VirtualClockTest, GoldenTableOfEightRanks) {
  const auto each = [](int peak) { return std::vector<int>(8, peak); };
  const auto falling = [](int from, int by) {
    std::vector<int> peaks;
    for (int rank = 0; rank < 8; ++rank) peaks.push_back(from - rank * by);
    return peaks;
  };
  const std::vector<Row> rows = {
      {"gpipe", 1, 69, 115, 161, each(16)},
      {"1f1b", 1, 69, 115, 161, falling(8, 1)},
      {"interleaved", 2, 58.5, 97.5, 136.5, falling(23, 2)},
      {"interleaved", 4, 53.25, 88.75, 124.25, falling(39, 2)},
      {"zb_h1", 1, 55, 101, 133, each(8)},
      {"interleaved_zb", 2, 51.5, 90.5, 122.5, each(16)},
      {"zb_h2", 1, 55, 94, 126, each(15)},
      {"zbv", 2, 51.5, 87, 122.5, each(16)},
      {"dualpipev", 2, 51.5, 90.5, 125, each(17)},
  };
  for (const Row& row : rows) ExpectRow(row, /*ranks=*/8, /*microbatches=*/16);
}

}  // namespace
}  // namespace weft
