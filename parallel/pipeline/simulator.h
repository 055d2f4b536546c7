// When each action runs, for given times of computing.

#ifndef WEFT_PARALLEL_PIPELINE_SIMULATOR_H_
#define WEFT_PARALLEL_PIPELINE_SIMULATOR_H_

#include <cstdint>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace weft {

// How the parts of an overlapped pair are timed.
enum class PairTiming : uint8_t {
  kSequential,  // one after the other, each as soon as its own inputs are there
  kAtomic,      // as one action as long as both: begins when all inputs are there, hands all on at its end
  kGiven,       // as kAtomic, but as long as ScheduleTimes::pair
};

// What computing takes, in any unit of time: of all layers of a rank, so that an action of one of its v
// chunks takes a v-th. B takes I and W together.
struct ScheduleTimes {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;
  PairTiming pairs = PairTiming::kSequential;
  double pair = 0;  // with PairTiming::kGiven, of F and B of a whole rank

  bool operator==(const ScheduleTimes&) const = default;
};

// An action that computes, and when it does.
struct TimedAction {
  PipelineAction action;
  double start = 0;
  double end = 0;
  bool overlapped = false;  // shares its time with the other part of its pair

  bool operator==(const TimedAction&) const = default;
};

// What a schedule comes to in time. The v of ScheduleTimes is the schedule's `num_chunks()`.
struct ScheduleTimeline {
  std::vector<std::vector<TimedAction>> ranks = {};  // in the order of the lists
  double makespan = 0;                               // the last end
  double bubble = 0;  // makespan less the computing of a whole rank: microbatches * (F + I + W)
};

// Runs the schedule: each rank in the order of its list, each action as soon as its rank is free and its
// inputs are there. Communication and updates take no time.
//
// Errors: InvalidArgument unless all times are finite and 0 or more, and add up to finite ones; the schedule has to be
//         without defect and deadlock (`checker.h`).
ScheduleTimeline SimulateSchedule(const PipelineSchedule& schedule, const ScheduleTimes& times);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_SIMULATOR_H_
