// Ranks that are processes of their own, made by the program itself.

#ifndef WEFT_RUNTIME_LAUNCH_SPAWN_RANKS_H_
#define WEFT_RUNTIME_LAUNCH_SPAWN_RANKS_H_

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/launch/world.h"

namespace weft {

struct SpawnOptions {
  // Of each rank's environment, beside this process's. Ranks do not inherit what a launcher has told this process of its own
  // job and that job's store (WEFT_STORE_CA, WEFT_SNAPSHOT_MEMORY, ...).
  std::map<std::string, std::string> variables = {};
  // Where each rank may say why it fails: FOLDER/<rank>/error.json. Empty: a folder of its own, which is removed at the end.
  std::string error_folder = {};
  // For the others to end after one has failed, by SIGTERM; then SIGKILL.
  std::chrono::milliseconds grace = std::chrono::seconds(3);
  WorldOptions world = {};  // of the ranks' worlds, where a function runs on them
};

// How a rank that SpawnRanks started has ended. A value.
struct SpawnedEnd {
  int exit_code = -1;      // -1: by a signal
  int signal = 0;          // 0: by itself
  std::string error = {};  // what it said in its error file

  bool operator==(const SpawnedEnd&) const = default;
  bool failed() const { return exit_code != 0; }
  // "exited with code 3", "was killed by signal 9 (SIGKILL)", with ": " and its error, if it told one.
  std::string What() const;
};

struct SpawnResult {
  std::vector<SpawnedEnd> ranks = {};  // by rank
  int first_failed = -1;               // the rank that failed first; -1: none

  // 0, or the code of the first that failed; 128 + N for signal N.
  int ExitCode() const;
};

// Starts `num_ranks` processes of `command` as the ranks of one job on this machine, and waits until all have ended. Each
// finds its rank as under weft_run (RANK, WORLD_SIZE, ...), so World::FromEnv and RunWorld work in it; the job's store is
// this process's. When one fails, by an exit code other than 0 or a signal, the others are stopped. None outlives this process.
//
// Threads: any; the ranks end with the calling thread.
// Errors:  NotFound or InvalidArgument for a program that cannot be started; ResourceExhausted; FailedPrecondition where this
//          process does not learn how a rank has ended (SIGCHLD is ignored). Ranks that run by then are stopped.
// Source:  torch.multiprocessing.spawn, torch.distributed.run.
SpawnResult SpawnRanks(int num_ranks, const std::vector<std::string>& command,
                       const SpawnOptions& options = {});

// The same with this very program and its arguments, for a main of a few lines:
//
//   int main(int argc, char** argv) {
//     return weft::SpawnRanks(4, argc, argv, [](weft::World& world) { ... });
//   }
//
// In the process that the user starts it starts the ranks and returns SpawnResult::ExitCode(), with a line on stderr for a
// failure; in each of those it runs `body` on its rank and returns 0, or 1 if that throws, which is told on stderr and in the
// error file. What main does before it does in all of them.
//
// Errors: InvalidArgument in a process that another launcher has started, or one of these ranks with its RANK and WORLD_SIZE;
//         those above.
int SpawnRanks(int num_ranks, int argc, const char* const* argv, const std::function<void(World&)>& body,
               const SpawnOptions& options = {});

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_SPAWN_RANKS_H_
