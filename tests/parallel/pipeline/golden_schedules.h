// PyTorch's schedules as tests/golden/make_pipeline_golden.py has written them.

#ifndef WEFT_TESTS_PARALLEL_PIPELINE_GOLDEN_SCHEDULES_H_
#define WEFT_TESTS_PARALLEL_PIPELINE_GOLDEN_SCHEDULES_H_

#include <string>
#include <vector>

#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/schedule.h"

namespace weft {

struct GoldenSchedule {
  std::string file;  // "ZBVZeroBubble-p4-m8-v2"
  std::string name;  // ours of the same schedule: "zbv"
  ScheduleSize size;
  std::vector<int> legal;    // counts of microbatches up to 20 that PyTorch takes
  bool has_lowered = false;  // whether there is a file of the kind
  bool has_waits = false;
};

std::vector<GoldenSchedule> GoldenSchedules();

// The file of computing alone (""), the lowered one ("-comms"), or the lowered one with waits ("-waits").
PipelineSchedule ReadGolden(const GoldenSchedule& golden, const std::string& form = "");

// The schedule without the items of a kind in `kinds`.
PipelineSchedule Without(PipelineSchedule schedule, const std::vector<ActionKind>& kinds);

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_PIPELINE_GOLDEN_SCHEDULES_H_
