// Whether each rank's list is legal by itself: all actions there, once, in an order that their inputs allow.

#ifndef WEFT_PARALLEL_PIPELINE_ACTION_ORDER_H_
#define WEFT_PARALLEL_PIPELINE_ACTION_ORDER_H_

#include <string>

#include "parallel/pipeline/schedule.h"

namespace weft {

// The first defect of a list, which names its rank and action; empty if there is none. What ranks wait for
// each other is left to `DeadlockOf`, whose schedules have no defect here.
//
//   F, B, I and W   F once per stage and microbatch, on the stage's rank; behind it either B, or I and behind
//                   that W, once
//   inputs          that come from the same rank: behind the action that makes them. From another rank, if
//                   the schedule is lowered: behind the receive
//   sends, receives one each, where the neighbouring stage lies on another rank, none elsewhere; sends behind
//                   what they send
//   parts of a pair what they need is there before the pair begins
//   UNSHARD         if there is any: a stage computes between UNSHARD and RESHARD, which come in turns and
//                   end with RESHARD
//   REDUCE_GRAD     if there is any: one per stage and update, behind the update's last gradient
//   OPT             if there is any: one per update, behind its last gradient and REDUCE_GRAD, before the
//                   next update's first gradient. Without WeightVersions::kOne there has to be
//   kPrevious       F of update g comes behind g-1 updates
//   WAIT_...        once, behind what they wait for
std::string ActionOrderDefect(const PipelineSchedule& schedule);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_ACTION_ORDER_H_
