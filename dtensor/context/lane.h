#ifndef WEFT_DTENSOR_CONTEXT_LANE_H_
#define WEFT_DTENSOR_CONTEXT_LANE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace weft {

// A rank's queues of communication. Collectives of one lane run in the order of their issue; lanes know
// nothing of each other, since each has communicators of its own. What is issued inline runs at once, on the
// rank's thread; the other lanes have a worker each and run while the rank computes.
//
// Every rank issues the same redistributions to a lane in the same order: what arrives when decides what is
// waited for, never what is issued next.
enum class Lane : uint8_t {
  kInline,   // the caller waits: activations, losses, norms
  kParam,    // parameters that are gathered ahead of their use
  kGrad,     // gradients on their way to rest
  kReplica,  // pieces of gradients that replicas sum (HSDP), when kGrad has brought them to their rank
};

inline constexpr Lane kLanes[] = {Lane::kInline, Lane::kParam, Lane::kGrad, Lane::kReplica};
inline constexpr int kNumLanes = 4;

// "inline", "param", "grad", "replica".
absl::string_view LaneName(Lane lane);

// Which goes first where the scheduler asks for it (SchedulerOptions::lane_priority) and lanes share a link: the higher. First
// what the rank's thread waits for, messages between stages of a pipeline too; then parameters, which it will need next; then
// gradients, which nobody reads before the update.
int LanePriority(Lane lane);

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_LANE_H_
