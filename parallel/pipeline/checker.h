// The certificate of a schedule: that it runs to its end, how long, and what each rank holds meanwhile.

#ifndef WEFT_PARALLEL_PIPELINE_CHECKER_H_
#define WEFT_PARALLEL_PIPELINE_CHECKER_H_

#include <string>

#include "parallel/pipeline/held_bytes.h"
#include "parallel/pipeline/holdings.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulator.h"

namespace weft {

// What is known of a schedule before it runs.
struct ScheduleCertificate {
  bool ok = false;
  std::string error;          // empty if ok; otherwise the rank and the action, or the circle of a deadlock
  ScheduleTimeline timeline;  // if ok
  ScheduleHoldings holdings;  // if ok
  HeldBytes bytes;            // if ok, where bytes are given
};

// Checks any schedule, wherever it comes from: each list by `ActionOrderDefect`, then all together by
// `DeadlockOf`. A legal one is timed by `SimulateSchedule`.
// `bytes`: of each stage and microbatch, where the certificate is to have what ranks hold in bytes, too.
//
// Cost:   time and memory in proportion to the actions.
// Errors: InvalidArgument for times that are none. A defect of the schedule is in the certificate.
ScheduleCertificate CheckSchedule(const PipelineSchedule& schedule, const ScheduleTimes& times = {},
                                  const BytesOfStage& bytes = nullptr);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_CHECKER_H_
