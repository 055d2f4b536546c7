// The certificate of a schedule in bytes: what each rank has saved for backward behind every action.

#ifndef WEFT_PARALLEL_PIPELINE_SAVED_BYTES_H_
#define WEFT_PARALLEL_PIPELINE_SAVED_BYTES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace weft {

// What one microbatch has in one stage, in bytes of a rank, and for how long. All are 0 or more.
struct StageBytes {
  int64_t inputs =
      0;  // what the stage before hands on: from its arrival, or F there, to W or B; 0 of the first stage
  int64_t output_gradients =
      0;                 // of what it hands on itself: from their arrival to W or B; 0 of the last stage
  int64_t saved = 0;     // of F, what the inputs' gradients alone read: to I or B
  int64_t kept = 0;      // of F, what the parameters' gradients read: to W or B
  int64_t deferred = 0;  // gradients of the outputs of products within the stage: from I to W; none under B
};

// By stage and microbatch.
using BytesOfStage = std::function<StageBytes(int stage, int microbatch)>;

struct SavedBytes {
  std::vector<std::vector<int64_t>>
      after;                  // by rank, behind each action of its list, parts of a pair in turn
  std::vector<int64_t> peak;  // by rank; within an action, what it makes is there beside what it leaves

  bool operator==(const SavedBytes&) const = default;
};

// What MemoryKind::kSaved counts while PipelineExecutor runs the schedule: F to I what is saved, I to W what W reads. It
// follows from the order of the lists alone. In lowered lists what comes from another rank is there from its receive on,
// and what goes to one until its send; in lists of computing alone it comes with the action that reads it and goes with
// the one that makes it. Gradients that stay on the rank count as gradients, not here.
//
// The schedule has no defect by `ActionOrderDefect`.
SavedBytes SavedBytesOf(const PipelineSchedule& schedule, const BytesOfStage& bytes);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_SAVED_BYTES_H_
