// Schedules as PyTorch's CSV: one row per rank, one cell per action.

#ifndef WEFT_PARALLEL_PIPELINE_SCHEDULE_CSV_H_
#define WEFT_PARALLEL_PIPELINE_SCHEDULE_CSV_H_

#include <string>

#include "absl/strings/string_view.h"
#include "parallel/pipeline/schedule.h"

namespace weft {

// Reads what PyTorch's `_dump_csv` and ScheduleToCsv write, compute-only or lowered: row r is the list of
// rank r, a blank cell is a bubble and is skipped, a blank row is a rank without actions (but for blank rows
// at the end). `file` is the schedule's name.
//
// A stage belongs to the rank that computes most of its actions, the first of several. Stages and
// microbatches are as many as the largest numbers say. A stage with several OPT is updated within the step:
// its schedule reads WeightVersions::kNewest and has as many microbatches per update as divide evenly; with
// one or none, kOne.
//
// The 1F1B of PyTorch 2.15 has a last stage whose F are numbered from 1 to m, its B from 0 to m - 1: those F are read as 0 to
// m - 1, which is what PyTorch runs.
//
// Errors: InvalidArgument "FILE:LINE: cell N: ..." for a cell that is no action, numbers of stages or
//         microbatches that no schedule has (more than 100,000, or more than the actions can be), and for a
//         stage that no rank computes; nothing else is judged here (`checker.h`).
PipelineSchedule ScheduleFromCsv(absl::string_view text, absl::string_view file);

// Reads the file at `path`.
// Errors: as ReadWholeFile and ScheduleFromCsv.
PipelineSchedule ReadScheduleCsv(const std::string& path);

// One row per rank, without bubbles; each ends with a newline.
std::string ScheduleToCsv(const PipelineSchedule& schedule);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_SCHEDULE_CSV_H_
