// --schedule of a trainer: the schedule of its pipeline, and an error that speaks of the flag.

#ifndef WEFT_EXAMPLES_SCHEDULE_FLAG_H_
#define WEFT_EXAMPLES_SCHEDULE_FLAG_H_

#include <string>

#include "absl/strings/string_view.h"
#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/schedule.h"

namespace weft {

// Makes the schedule of the name that the flag has. `also`: what else the flag takes, for the error.
// Errors: InvalidArgument for a name that there is not (lists those that trainers take); as GenerateSchedule and
//         CheckTrainersSchedule.
PipelineSchedule TrainersSchedule(const std::string& name, const ScheduleSize& size,
                                  absl::string_view also = "");

// A schedule from wherever, for which the flag has `value`.
// Errors: InvalidArgument if it updates parameters within the step: a trainer's optimizer does so after it. As CheckCanRun.
void CheckTrainersSchedule(const std::string& value, const PipelineSchedule& schedule);

}  // namespace weft

#endif  // WEFT_EXAMPLES_SCHEDULE_FLAG_H_
