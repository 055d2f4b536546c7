#ifndef WEFT_TOOLS_LAUNCHER_LAUNCH_H_
#define WEFT_TOOLS_LAUNCHER_LAUNCH_H_

#include "tools/launcher/launch_options.h"

namespace weft {

// What weft_run does once its command line is read: opens or joins the job's store, meets the other nodes,
// and runs the workers under a guard. Returns the exit code of the program, in the guard's process and in the
// agent's (see RunGuarded).
//
// Threads: to be called before the process has a second one.
// Errors:  what cannot be started, reached or agreed on, in the agent's process: its message is for the user.
int Launch(const LaunchOptions& options);

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_LAUNCH_H_
