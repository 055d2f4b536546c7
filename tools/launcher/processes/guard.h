#ifndef WEFT_TOOLS_LAUNCHER_PROCESSES_GUARD_H_
#define WEFT_TOOLS_LAUNCHER_PROCESSES_GUARD_H_

#include <functional>

namespace weft {

// Runs `body` in a child process, the agent, with this process as its guard; returns the exit code of the
// program in each. Whichever of the two is killed, nothing of what the agent started is left:
//
//   the agent is killed   its workers die with it (PR_SET_PDEATHSIG); what they had started comes to the
//   guard,
//                         which kills it, even if it has left its process group and session
//   the guard is killed   the agent gets SIGTERM, and finds its parent gone
//   both at once          the workers die; what they had started lives on, if it does not end by itself
//
// The guard passes on the signals of SignalSource. The agent is in a process group of its own, so that the
// terminal's signals reach it once, through the guard.
//
// Threads: to be called before the process has a second one.
int RunGuarded(const std::function<int()>& body);

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_PROCESSES_GUARD_H_
