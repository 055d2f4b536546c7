// Whether ranks that run their lists in order all come to the end.

#ifndef WEFT_PARALLEL_PIPELINE_DEADLOCK_H_
#define WEFT_PARALLEL_PIPELINE_DEADLOCK_H_

#include <string>

#include "parallel/pipeline/schedule.h"

namespace weft {

// The circle of ranks that wait for each other, each with its action; empty if every rank comes to its end.
// The strictest machine is taken, so that whatever passes runs on any: a lowered schedule's send and receive
// both wait until the other has come to its end of the transfer (rendezvous), and an overlapped pair begins
// when all its parts can. In a schedule that computes alone an action waits for the actions of other ranks
// that make its inputs.
//
// The schedule has no defect by `ActionOrderDefect`.
std::string DeadlockOf(const PipelineSchedule& schedule);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_DEADLOCK_H_
