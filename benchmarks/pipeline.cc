// How a pipeline runs beside what its certificate says, and what running it costs.
//
//   bazel build //benchmarks:pipeline
//   weft_run --nproc-per-node=4 bazel-bin/benchmarks/pipeline --ranks=4     ranks as processes
//   bazel run //benchmarks:pipeline -- --ranks=4                            ranks as threads
//
// Five kinds of lines:
//
//   makespan/SCHEDULE/RANKSr   seconds of a step whose stages sleep `--unit_ms` for each of F, I and W of a whole rank, median
//                              of five; the limit is the certificate's makespan in those units. What is above it is
//                              the executor, the messages and the sleeps' own lateness, on as many cores as there are
//   idle/SCHEDULE/RANKSr       seconds of the same steps in which the rank that idles longest did not sleep for its stages; the
//                              limit is the certificate's bubble and 3% of its makespan
//   action/SCHEDULE/RANKSr     microseconds of the rank thread's CPU time for an action, with stages that do nothing,
//                              without those of the same segments run one after another, without hand-overs, and without
//                              waits, since they take no CPU time
//   handover/SCHEDULE/RANKSr   the same of a hand-over: a send, or a receive
//   message/SIZE/RANKSr        a message between the first two ranks, half of there and back: a small one in microseconds,
//                              others as GB/s, beside a copy of bytes that another thread has just written: they come from
//                              where another core has them, as those of a message do

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "benchmarks/machine_limits.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/local_function.h"
#include "dtensor/functions.h"
#include "dtensor/nn/segmented_module.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/checker.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "runtime/base/flags.h"
#include "runtime/comm/edges.h"
#include "runtime/launch/run_world.h"
#include "runtime/launch/world.h"

ABSL_FLAG(int, ranks, 2, "of the pipeline: threads, or as many processes as a launcher has started");
ABSL_FLAG(int, microbatches, 0, "of a step; 0: four per rank");
ABSL_FLAG(double, unit_ms, 20, "what F, I and W of a whole rank take each");
ABSL_FLAG(std::vector<std::string>, schedules,
          std::vector<std::string>({"gpipe", "1f1b", "interleaved", "looped_bfs", "zb_h1", "zb_h2",
                                    "interleaved_zb", "zbv", "dualpipev", "v_half", "v_min", "pipedream",
                                    "pipedream_2bw"}),
          "to measure");

namespace weft {
namespace {

constexpr int kRepeats = 5;
constexpr double kMakespanTarget = 1.03;
constexpr double kIdleSlack = 0.03;  // of the makespan
constexpr double kActionTargetUs = 20;
constexpr double kHandOverTargetUs = 50;
constexpr double kMessageTargetUs = 50;  // of a small one
constexpr double kMessageTarget = 0.3;   // of the rate of such a copy
constexpr int64_t kSmall = 4 << 10;
constexpr int64_t kWidth = 64;

FlagsUsage Usage() {
  return {
      .summary = "Measures pipelines: their time beside the certificate's, what an action costs, messages.",
      .groups = {{"Measurement", {"ranks", "microbatches", "unit_ms", "schedules", "log_format"}}},
      .examples = {"pipeline --ranks=4 --schedules=zbv", "weft_run --nproc-per-node=4 pipeline --ranks=4"}};
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Adds what it took.
void Sleep(double seconds, double* slept) {
  const double begun = Now();
  prctl(PR_SET_TIMERSLACK, 1);  // the kernel lets a sleep take 50 us more otherwise
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  *slept += Now() - begun;
}

// A function of one piece that hands it on, and its gradient back, and sleeps on both ways.
DTensor Sleeping(const char* name, const DTensor& x, double forward, double backward, double* slept) {
  const LocalFunction function = {
      .name = name,
      .operands = {{.layout = x.layout(), .gradient = x.layout()}},
      .outputs = {{.type = x.type(), .layout = x.layout(), .gradient = x.layout()}},
      .forward = [forward, slept](absl::Span<const Tensor> operands) -> std::vector<Tensor> {
        if (forward > 0) Sleep(forward, slept);
        return {operands[0]};
      },
      .backward = [backward, slept](const LocalGradients& of) -> std::vector<Tensor> {
        if (backward > 0) Sleep(backward, slept);
        return {of.gradients[0]};
      },
  };
  return CallLocal(function, {x})[0];
}

// One stage: F and I sleep where the activation passes, W where the parameter joins it.
class Sleeper : public Module {
 public:
  Sleeper(Module* parent, std::string name, const double& seconds, double* slept)
      : Module(parent, std::move(name)),
        weight(this, "weight", {.shape = {kWidth}, .initializer = Initializer::Constant(0)}),
        seconds_(seconds),
        slept_(slept) {}

  Parameter weight;

 protected:
  DTensor Forward(const DTensor& x) override {
    return Add(Sleeping("sleep F and I", x, seconds_, seconds_, slept_),
               Sleeping("sleep W", weight.Value(), 0, seconds_, slept_));
  }

 private:
  const double& seconds_;
  double* const slept_;
};

// An entry that wants a gradient, then as many stages as there are. `seconds` may change between steps.
class Sleepers : public SegmentedModule {
 public:
  explicit Sleepers(int count) : entry(this, "entry", seconds, &slept) {
    for (int i = 0; i < count; ++i) {
      sleepers.push_back(std::make_unique<Sleeper>(this, absl::StrCat("stages.", i), seconds, &slept));
    }
  }
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    return {.sum = Sum(outputs[0]), .count = CountOf(targets)};
  }
  DTensor CountOf(const DTensor& targets) override {
    return Full(targets.context(), DType::kF64, Shape(), 1);
  }

  double seconds = 0;
  double slept = 0;  // by this rank
  Sleeper entry;
  std::vector<std::unique_ptr<Sleeper>> sleepers;

 protected:
  std::vector<Segment> MakeSegments() override {
    std::vector<Segment> chain;
    chain.push_back({.modules = {&entry}, .cost = 0, .run = [this](const DTensors& x) -> DTensors {
                       return {Add(x[0], entry.weight.Value())};
                     }});
    for (const auto& each : sleepers) {
      chain.push_back({.modules = {each.get()}, .cost = 1, .run = [&each](const DTensors& x) -> DTensors {
                         return {(*each)(x[0])};
                       }});
    }
    return chain;
  }
};

class Measurement {
 public:
  explicit Measurement(World& world)
      : world_(world),
        num_ranks_(world.size()),
        mesh_(DeviceMesh::Parse(absl::StrCat("pp=", world.size()))) {}

  void Run() {
    for (const std::string& name : absl::GetFlag(FLAGS_schedules)) MeasureSchedule(name);
    for (const int64_t size : {kSmall, int64_t{1} << 20, int64_t{16} << 20}) MeasureMessage(size);
  }

 private:
  void Say(const Figure& figure) const {
    if (world_.rank() == 0) Report(figure);
  }

  // The most of all ranks, on every rank.
  double Most(double mine) {
    if (all_ == nullptr) {
      std::vector<int> ranks(num_ranks_);
      for (int i = 0; i < num_ranks_; ++i) ranks[i] = i;
      all_ = world_.NewGroup("measured", ranks);
    }
    const Tensor most = Tensor::FromValues<double>({1}, {mine}, world_.allocator());
    all_->AllReduce(most, most, ReduceOp::kMax).Wait();
    return most.ToVector<double>()[0];
  }

  void MeasureSchedule(const std::string& name) {
    const int given = absl::GetFlag(FLAGS_microbatches);
    const int microbatches = given > 0 ? given : 4 * num_ranks_;
    const PipelineSchedule schedule =
        GenerateSchedule(name, {.ranks = num_ranks_, .microbatches = microbatches});
    const int chunks = schedule.num_chunks();
    const bool is_v = chunks == 2 && schedule.stage_rank.back() == 0 && num_ranks_ > 1;
    Sleepers model(schedule.num_stages());
    const Plan plan = {
        {"stages.*", Pipeline("pp", {.chunks = chunks,
                                     .order = is_v ? StageOrder::kV : StageOrder::kLoop,
                                     .sizes = std::vector<int64_t>(schedule.num_stages(), 1)})}};
    Parallelize(model, world_, mesh_, plan);
    const auto let_go = [&](const std::vector<Parameter*>& parameters) {
      for (Parameter* parameter : parameters) parameter->ClearGrad();
    };
    PipelineExecutor* of_update = nullptr;
    PipelineExecutor pipeline(
        model, schedule,
        {.update = [&](int stage) { let_go(of_update->ParametersOf(stage)); },
         .on_action = [this](const PipelineAction& action, bool begins) { NoteAction(action, begins); }});
    of_update = &pipeline;
    std::vector<Microbatch> parts;
    for (int i = 0; i < microbatches; ++i) {
      const Tensor x = Tensor::FromValues<float>({kWidth}, std::vector<float>(kWidth, 1), world_.allocator());
      const DTensor input = DTensor::Distribute(model.context(), x, Layout(1, 1));
      parts.push_back({.inputs = {input}, .targets = input});
    }
    const DTensor total = Full(model.context(), DType::kF64, Shape(), 1);
    pipeline.Run(parts, total);
    MeasureActions(name, model, pipeline, parts, total);

    const double unit = absl::GetFlag(FLAGS_unit_ms) / 1e3;
    model.seconds = unit / chunks;
    std::vector<double> seconds, idle;
    for (int i = 0; i < kRepeats; ++i) {
      Most(0);
      model.slept = 0;
      const double begun = Now();
      pipeline.Run(parts, total);
      seconds.push_back(Most(Now() - begun));
      idle.push_back(Most(seconds.back() - model.slept));
    }
    const ScheduleTimeline timeline = CheckSchedule(schedule).timeline;
    Say({.name = absl::StrCat("makespan/", name, "/", num_ranks_, "r"),
         .value = Median(seconds),
         .unit = "s",
         .limit = timeline.makespan * unit,
         .limit_is = "certificate",
         .target = kMakespanTarget,
         .less_is_better = true});
    Say({.name = absl::StrCat("idle/", name, "/", num_ranks_, "r"),
         .value = Median(idle),
         .unit = "s",
         .limit = (timeline.bubble + kIdleSlack * timeline.makespan) * unit,
         .limit_is = "certificate and 3% of the step",
         .target = 1,
         .less_is_better = true});
  }

  void NoteAction(const PipelineAction& action, bool begins) {
    if (!times_transfers_ || !IsTransfer(action.kind)) return;
    in_transfers_ += begins ? -ThreadSeconds() : ThreadSeconds();
  }

  // What a step takes of the rank's thread, beyond the forward and backward of its stages alone: hand-overs, and the rest.
  void MeasureActions(const std::string& name, Sleepers& model, PipelineExecutor& pipeline,
                      const std::vector<Microbatch>& parts, const DTensor& total) {
    model.seconds = 0;
    int64_t num_actions = 0, num_transfers = 0;
    for (const ScheduleItem& item : pipeline.schedule().ranks[world_.rank()]) {
      for (const PipelineAction& action : item.actions)
        ++(IsTransfer(action.kind) ? num_transfers : num_actions);
    }
    constexpr int kSteps = 30;
    std::vector<double> in_step, alone, in_transfers;
    for (int i = 0; i < kSteps; ++i) {
      double begun = ThreadSeconds();
      pipeline.Run(parts, total);
      in_step.push_back(ThreadSeconds() - begun);
      begun = ThreadSeconds();
      RunAlone(model, parts);
      alone.push_back(ThreadSeconds() - begun);
      // In steps of their own, since a look at the clock takes time, too.
      times_transfers_ = true;
      in_transfers_ = 0;
      pipeline.Run(parts, total);
      times_transfers_ = false;
      in_transfers.push_back(in_transfers_);
    }
    const double handed_over = Median(in_transfers);
    const double rest = Median(in_step) - Median(alone) - handed_over;
    SayCost("action", name, rest / static_cast<double>(num_actions), kActionTargetUs, "20 us");
    // A single rank has none.
    SayCost("handover", name, handed_over / static_cast<double>(std::max<int64_t>(1, num_transfers)),
            kHandOverTargetUs, "50 us");
  }

  // Seconds of this rank; the most of all ranks is said.
  void SayCost(const char* what, const std::string& name, double seconds, double limit_us,
               const char* limit_is) {
    Say({.name = absl::StrCat(what, "/", name, "/", num_ranks_, "r"),
         .value = Most(seconds * 1e6),
         .unit = "us",
         .limit = limit_us,
         .limit_is = limit_is,
         .target = 1,
         .less_is_better = true});
  }

  // The stages of this rank, forward and backward, with nothing in between.
  void RunAlone(Sleepers& model, const std::vector<Microbatch>& parts) {
    const ModelStages& stages = *model.stages();
    for (const Microbatch& part : parts) {
      for (int stage = 0; stage < stages.num_stages(); ++stage) {
        if (stages.stage_ranks[stage] != world_.rank()) continue;
        const ModuleCall call(model);
        const DTensor input = stage > 0 ? part.inputs[0].RequiresGrad() : part.inputs[0];
        const DTensor output =
            model.RunSegments(stages.first_segments[stage], stages.first_segments[stage + 1], {input})[0];
        Backward(output, part.inputs[0]);
      }
    }
    for (Parameter* parameter : model.AllParameters()) parameter->ClearGrad();
  }

  void MeasureMessage(int64_t size) {
    std::vector<double> there_and_back;
    double copied = 0;
    if (world_.rank() < 2) {
      const std::vector<Edge> edges = {{0, 1}, {1, 0}};
      Edges links("link", {0, 1}, world_.rank(), edges,
                  [&](const std::string& name, const std::vector<int>& ranks) {
                    return world_.NewGroup(name, ranks);
                  });
      const int other = 1 - world_.rank();
      const Tensor here = Tensor::Empty(world_.allocator(), DType::kU8, {size});
      const Tensor there = Tensor::Empty(world_.allocator(), DType::kU8, {size});
      std::memset(here.data<uint8_t>(), 1, size);
      std::memset(there.data<uint8_t>(), 1, size);
      constexpr int kMessages = 21;
      for (int i = 0; i < kMessages; ++i) {
        const double begun = Now();
        if (world_.rank() == 0) {
          links.Send(here, other, 0).Wait();
          links.Recv(there, other, 0).Wait();
        } else {
          links.Recv(there, other, 0).Wait();
          links.Send(here, other, 0).Wait();
        }
        there_and_back.push_back(Now() - begun);
      }
      copied = static_cast<double>(size) / CopiedBytesPerSecond(size);
    }
    Most(0);
    if (world_.rank() != 0) return;
    const std::string name = absl::StrCat("message/", size >> 10, "KiB/", num_ranks_, "r");
    const double seconds = Median(there_and_back) / 2;
    if (size <= kSmall) {
      Say({.name = name,
           .value = seconds * 1e6,
           .unit = "us",
           .limit = kMessageTargetUs,
           .limit_is = "50 us",
           .target = 1,
           .less_is_better = true});
      return;
    }
    const auto bytes = static_cast<double>(size);
    Say({.name = name,
         .value = bytes / seconds / 1e9,
         .unit = "GB/s",
         .limit = bytes / copied / 1e9,
         .limit_is = "copy of what another core has written",
         .target = kMessageTarget});
  }

  World& world_;
  const int num_ranks_;
  const DeviceMesh mesh_;
  std::shared_ptr<Communicator> all_;
  bool times_transfers_ = false;
  double in_transfers_ = 0;  // CPU seconds of a step's hand-overs
};

int Measure() {
  RunWorld(absl::GetFlag(FLAGS_ranks), [](World& world) { Measurement(world).Run(); });
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Measure); }
