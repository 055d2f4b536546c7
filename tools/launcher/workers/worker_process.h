#ifndef WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_PROCESS_H_
#define WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "tools/launcher/processes/file_descriptor.h"

namespace weft {

// A program that runs, and the ends of its streams to read from, which do not block.
struct WorkerProcess {
  pid_t pid = -1;
  FileDescriptor out;
  FileDescriptor err;
};

// Starts `command` (found as the shell finds it) with exactly the variables `environment` (NAME=VALUE).
//
// It is the leader of a process group of its own, so that it can be signalled with all that it starts; it is
// killed when this process, or the thread that calls this, ends; its signals are as after a fresh login; its
// stdin is empty.
//
// Errors: NotFound or InvalidArgument, naming the program, if it is not there or cannot be executed;
//         ResourceExhausted if the system has no process or file left.
WorkerProcess StartWorkerProcess(const std::vector<std::string>& command,
                                 const std::vector<std::string>& environment);

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_PROCESS_H_
