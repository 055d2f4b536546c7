// Another program as a child of this process: fork and exec, with an error that says why it could not start.

#ifndef WEFT_RUNTIME_BASE_START_PROGRAM_H_
#define WEFT_RUNTIME_BASE_START_PROGRAM_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace weft {

// What the program has otherwise than this process.
struct ProgramStart {
  bool leads_group = false;      // of processes, so that it can be signalled with all that it starts
  bool default_signals = false;  // signals that this process ignores have their usual action
  bool empty_input = false;      // in place of this process's stdin
  int out = -1;                  // its stdout and stderr; -1: this process's
  int err = -1;
};

// Starts `command` (found as the shell finds it) with exactly the variables `environment` (NAME=VALUE), no signal blocked.
// Returns its process, which is killed when this one, or the thread that calls this, ends.
//
// Threads: any, also where others hold locks: between fork and exec there are plain system calls alone.
// Errors:  NotFound or InvalidArgument, naming the program, if it is not there or cannot be executed; ResourceExhausted if
//          the system has no process or file left.
pid_t StartProgram(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                   const ProgramStart& start = {});

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_START_PROGRAM_H_
