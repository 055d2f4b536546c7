// The executor on a virtual clock that its messages carry: activations and gradients are the times at which they were made,
// so that ranks come to the times of the certificate, exactly.

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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

  double Run(double ready, double seconds) { return now = std::max(now, ready) + seconds; }
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
  Timed(Module* parent, std::string name, VirtualClock& clock, const ScheduleTimes& times)
      : Module(parent, std::move(name)),
        weight(this, "weight", {.shape = {1}, .initializer = Initializer::Constant(0)}),
        clock_(clock),
        times_(times) {}

  Parameter weight;

 protected:
  DTensor Forward(const DTensor& x) override {
    const DTensor through = OfTime(
        "F and I", x, [this](double ready) { return Time(clock_.Run(ready, times_.forward)); },
        [this](double ready) { return Time(clock_.Run(ready, times_.input_gradient)); });
    // Recorded later, so that in B it runs first, and what is handed back is the time at B's end.
    const DTensor beside = OfTime(
        "W", weight.Value(), [](double) { return Time(0); },
        [this](double ready) {
          clock_.Run(ready, times_.weight_gradient);
          return Time(0);
        });
    return Add(through, beside);
  }

 private:
  VirtualClock& clock_;
  const ScheduleTimes times_;
};

class TimedModel : public SegmentedModule {
 public:
  TimedModel(int num_stages, VirtualClock& clock, const ScheduleTimes& of_chunk)
      : entry(this, "entry", clock, of_chunk) {
    for (int i = 0; i < num_stages; ++i) {
      layers.push_back(std::make_unique<Timed>(this, absl::StrCat("layers.", i), clock, of_chunk));
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

// When each rank has ended its last action that computes.
std::vector<double> EndsOf(const PipelineSchedule& schedule, const ScheduleTimes& times) {
  std::vector<double> ends(schedule.num_ranks());
  const int chunks = schedule.num_chunks();
  RunRanks(schedule.num_ranks(), [&](World& world) {
    VirtualClock clock;
    TimedModel model(schedule.num_stages(), clock,
                     {.forward = times.forward / chunks,
                      .input_gradient = times.input_gradient / chunks,
                      .weight_gradient = times.weight_gradient / chunks});
    const bool is_v = chunks == 2 && schedule.stage_rank == VPlacement(schedule.num_ranks());
    const Plan plan = {
        {"layers.*", Pipeline("pp", {.chunks = chunks,
                                     .order = is_v ? StageOrder::kV : StageOrder::kLoop,
                                     .sizes = std::vector<int64_t>(schedule.num_stages(), 1)})}};
    const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("pp=", schedule.num_ranks()));
    Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, schedule);
    std::vector<Microbatch> parts;
    for (int i = 0; i < schedule.num_microbatches; ++i) {
      const DTensor begin = Full(model.context(), DType::kF64, {1}, 0);
      parts.push_back({.inputs = {begin}, .targets = begin});
    }
    pipeline.Run(parts, Full(model.context(), DType::kF64, Shape(), 1));
    ends[world.rank()] = clock.now;
  });
  return ends;
}

TEST(VirtualClockTest, RanksEndWhenTheCertificateSays) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "looped_bfs", "zb_h1", "zb_h2", "interleaved_zb",
                           "zbv", "dualpipev", "v_half", "v_min"}) {
    for (const ScheduleTimes& times :
         {ScheduleTimes{1, 1, 1}, ScheduleTimes{2, 2, 1}, ScheduleTimes{2, 4, 2}}) {
      for (const int ranks : {2, 4}) {
        const PipelineSchedule schedule = GenerateSchedule(name, {.ranks = ranks, .microbatches = 2 * ranks});
        const ScheduleTimeline timeline = CheckSchedule(schedule, times).timeline;
        std::vector<double> expected;
        for (const std::vector<TimedAction>& list : timeline.ranks) {
          double end = 0;
          for (const TimedAction& action : list) end = std::max(end, action.end);
          expected.push_back(end);
        }
        EXPECT_EQ(EndsOf(schedule, times), expected)
            << name << " on " << ranks << " ranks, F = " << times.forward << ", I = " << times.input_gradient;
        EXPECT_EQ(*std::max_element(expected.begin(), expected.end()), timeline.makespan);
      }
    }
  }
}

}  // namespace
}  // namespace weft
