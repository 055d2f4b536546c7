#include "examples/schedule_flag.h"

#include <vector>

#include "absl/strings/str_join.h"
#include "parallel/pipeline/executor.h"
#include "runtime/base/error.h"

namespace weft {

PipelineSchedule TrainersSchedule(const std::string& name, const ScheduleSize& size, absl::string_view also) {
  std::vector<std::string> names;  // that trainers take
  bool is_there = false;
  for (const ScheduleGenerator& generator : AllSchedules()) {
    is_there |= generator.name == name;
    if (!generator.updates_within_step) names.push_back(generator.name);
  }
  WEFT_REQUIRE(is_there, "--schedule=", name, ": expected one of ", absl::StrJoin(names, ", "), also);
  PipelineSchedule schedule = GenerateSchedule(name, size);
  CheckTrainersSchedule(name, schedule);
  return schedule;
}

void CheckTrainersSchedule(const std::string& value, const PipelineSchedule& schedule) {
  WEFT_REQUIRE(
      !schedule.Contains(ActionKind::kOpt), "--schedule=", value,
      ": it updates parameters within the step (OPT): expected one that leaves them to the optimizer "
      "after the step");
  CheckCanRun(schedule);
}

}  // namespace weft
