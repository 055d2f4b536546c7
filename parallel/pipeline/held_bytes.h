// The certificate of a schedule in bytes: what each rank holds for backward behind every action.

#ifndef WEFT_PARALLEL_PIPELINE_HELD_BYTES_H_
#define WEFT_PARALLEL_PIPELINE_HELD_BYTES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace weft {

// What one microbatch has in one stage, in bytes of a rank, and for how long. All are 0 or more.
//
//   RECV_F   F        RECV_B   I or B   W
//     |------------- input ------|             of what the stage before hands on; 0 of the first stage
//              |---- saved ------|             of what F makes and backward reads; the loss, too
//                       |- gradient -|         of what the stage hands on; 0 of the last stage
//                                |-- kept -|   whatever I leaves for W: of an x -> x W, both x and dY; none under B
//
// What two stages of one rank hand each other is there from the F, or the I or B, that makes it. Until it is sent, what goes
// to another rank is there, too: the next stage's input, the gradient of the stage before.
struct StageBytes {
  int64_t saved = 0;
  int64_t kept = 0;
  int64_t input = 0;
  int64_t gradient = 0;

  bool operator==(const StageBytes&) const = default;
};

// By stage and microbatch.
using BytesOfStage = std::function<StageBytes(int stage, int microbatch)>;

struct HeldBytes {
  // By rank, behind each action in the order of `RunOrder`.
  std::vector<std::vector<int64_t>> after;
  // By rank: the most that is there at a time, between actions; in lists of computing alone also where a transfer would stand.
  std::vector<int64_t> peak;

  bool operator==(const HeldBytes&) const = default;
};

// What a rank holds as PipelineExecutor runs the schedule: activations and their gradients, no parameters, no gradients of
// parameters. It follows from the order of the lists alone, whatever the times. In lists of computing alone what comes from
// another rank comes with the action that reads it, and what goes to one goes with the action that makes it.
// An allocator counts as MemoryKind::kSaved what F makes and what is received, as kGrad what I and B make.
//
// The schedule has no defect by `ActionOrderDefect`.
HeldBytes HeldBytesOf(const PipelineSchedule& schedule, const BytesOfStage& bytes);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_HELD_BYTES_H_
