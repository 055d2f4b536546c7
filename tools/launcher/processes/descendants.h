#ifndef WEFT_TOOLS_LAUNCHER_PROCESSES_DESCENDANTS_H_
#define WEFT_TOOLS_LAUNCHER_PROCESSES_DESCENDANTS_H_

#include <sys/types.h>

#include <chrono>
#include <vector>

namespace weft {

// Makes this process the one that orphans below it come to, where otherwise they would go to the system's
// first process and be out of reach.
void AdoptOrphans();

// The living processes below `root`: children, their children and so on, as /proc shows them now.
std::vector<pid_t> DescendantsOf(pid_t root);

// Kills all that is below this process (SIGKILL), and reaps it, again and again until nothing is left: a
// process may have started another meanwhile. For a process that called AdoptOrphans, and has no child that
// should live on.
//
// Returns false if something was left after `bound`: what waits in the kernel does not die.
bool KillDescendants(std::chrono::milliseconds bound);

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_PROCESSES_DESCENDANTS_H_
