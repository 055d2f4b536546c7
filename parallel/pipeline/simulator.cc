#include "parallel/pipeline/simulator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "runtime/base/error.h"

namespace weft {
namespace {

using Kind = ActionKind;

constexpr double kNever = std::numeric_limits<double>::infinity();

// Times are those of a whole rank throughout, and all are divided by the chunks at the end: then whole
// numbers stay exact.
class Simulation {
 public:
  Simulation(const PipelineSchedule& schedule, const ScheduleTimes& times)
      : schedule_(schedule),
        times_(times),
        forward_(static_cast<size_t>(schedule.num_stages()) * schedule.num_microbatches, kNever),
        gradient_(forward_.size(), kNever),
        next_(schedule.num_ranks()),
        free_(schedule.num_ranks(), 0),
        timeline_{.ranks = std::vector<std::vector<TimedAction>>(schedule.num_ranks())} {}

  ScheduleTimeline Run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
        while (Advance(rank)) moved = true;
      }
    }
    const int chunks = schedule_.num_chunks();
    for (std::vector<TimedAction>& actions : timeline_.ranks) {
      for (TimedAction& timed : actions) {
        timeline_.makespan = std::max(timeline_.makespan, timed.end);
        timed.start /= chunks;
        timed.end /= chunks;
      }
    }
    const double step = times_.forward + times_.input_gradient + times_.weight_gradient;
    timeline_.bubble = (timeline_.makespan - step * chunks * schedule_.num_microbatches) / chunks;
    timeline_.makespan /= chunks;
    return std::move(timeline_);
  }

 private:
  // Where a rank is in its list: an item, and in a pair of kSequential the part.
  struct Position {
    size_t item = 0;
    size_t part = 0;
  };

  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * schedule_.num_microbatches + microbatch;
  }

  double TimeOf(Kind kind) const {
    switch (kind) {
      case Kind::kForward:
        return times_.forward;
      case Kind::kInputGradient:
        return times_.input_gradient;
      case Kind::kWeightGradient:
        return times_.weight_gradient;
      default:
        return times_.input_gradient + times_.weight_gradient;
    }
  }

  // When what comes from other stages is there; kNever if that is not known yet.
  double InputsOf(const PipelineAction& action) const {
    if (action.kind == Kind::kForward) {
      return action.stage == 0 ? 0 : forward_[At(action.stage - 1, action.microbatch)];
    }
    if (action.kind == Kind::kWeightGradient || action.stage + 1 == schedule_.num_stages()) return 0;
    return gradient_[At(action.stage + 1, action.microbatch)];
  }

  void Record(int rank, const PipelineAction& action, double start, double end, bool overlapped) {
    if (action.kind == Kind::kForward) forward_[At(action.stage, action.microbatch)] = end;
    if (action.kind == Kind::kInputGradient || action.kind == Kind::kBackward) {
      gradient_[At(action.stage, action.microbatch)] = end;
    }
    timeline_.ranks[rank].push_back({action, start, end, overlapped});
    free_[rank] = end;
  }

  bool Advance(int rank) {
    Position& position = next_[rank];
    if (position.item == schedule_.ranks[rank].size()) return false;
    const ScheduleItem& item = schedule_.ranks[rank][position.item];
    const bool whole = item.overlapped() && times_.pairs != PairTiming::kSequential;
    if (whole) {
      if (!RunPair(rank, item)) return false;
    } else {
      const PipelineAction& action = item.actions[position.part];
      if (IsCompute(action.kind)) {
        const double inputs = InputsOf(action);
        if (inputs == kNever) return false;
        const double start = std::max(free_[rank], inputs);
        Record(rank, action, start, start + TimeOf(action.kind), /*overlapped=*/false);
      }
      if (++position.part < item.actions.size()) return true;
    }
    position = {position.item + 1, 0};
    return true;
  }

  bool RunPair(int rank, const ScheduleItem& item) {
    double start = free_[rank];
    double time = 0;
    for (const PipelineAction& action : item.actions) {
      start = std::max(start, InputsOf(action));
      time += TimeOf(action.kind);
    }
    if (start == kNever) return false;
    if (times_.pairs == PairTiming::kGiven) time = times_.pair;
    for (const PipelineAction& action : item.actions)
      Record(rank, action, start, start + time, /*overlapped=*/true);
    return true;
  }

  const PipelineSchedule& schedule_;
  const ScheduleTimes& times_;
  std::vector<double> forward_;   // by stage and microbatch: the end of F
  std::vector<double> gradient_;  // the end of I or B
  std::vector<Position> next_;
  std::vector<double> free_;
  ScheduleTimeline timeline_;
};

}  // namespace

ScheduleTimeline SimulateSchedule(const PipelineSchedule& schedule, const ScheduleTimes& times) {
  for (double time : {times.forward, times.input_gradient, times.weight_gradient, times.pair}) {
    WEFT_REQUIRE(std::isfinite(time) && time >= 0, "expected times of 0 or more, got ", time);
  }
  ScheduleTimeline timeline = Simulation(schedule, times).Run();
  WEFT_REQUIRE(std::isfinite(timeline.makespan) && std::isfinite(timeline.bubble),
               "expected times that add up to a finite number, got ", times.forward, ", ",
               times.input_gradient, " and ", times.weight_gradient, " of F, I and W, ", times.pair,
               " of a pair");
  return timeline;
}

}  // namespace weft
