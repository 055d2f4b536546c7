#ifndef WEFT_TOOLS_FAULTS_KILL_NODE_H_
#define WEFT_TOOLS_FAULTS_KILL_NODE_H_

#include <sys/types.h>

#include "tools/faults/fault_plan.h"

namespace weft {

// SIGKILL of what `fault` hits of a node: kAgent, kGuard, kBoth, or kHost, which is weft_run's two processes and all that runs
// below them. `guard`: the process that was started as weft_run; none below 1, and nothing is done.
void KillNode(pid_t guard, Fault fault);

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_KILL_NODE_H_
