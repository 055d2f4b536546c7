#ifndef WEFT_TOOLS_LAUNCHER_LAUNCH_OPTIONS_H_
#define WEFT_TOOLS_LAUNCHER_LAUNCH_OPTIONS_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/base/flags.h"
#include "tools/launcher/stream_choice.h"

namespace weft {

// How the launchers of a job's nodes find each other.
enum class Meeting {
  kStandalone,  // there is one node, and nobody to find
  kStatic,      // the nodes are numbered on their command lines; number 0 is where the others come
  kDynamic,     // the nodes come to an endpoint, which numbers them
};

// What weft_run's command line says, checked as a whole. A value.
struct LaunchOptions {
  bool help = false;          // nothing else is set
  bool version = false;       // the same
  bool print_config = false;  // the same

  Meeting meeting = Meeting::kStandalone;
  int min_nodes = 1;
  int max_nodes = 1;
  int workers_per_node = 1;
  int node_rank = 0;                  // kStatic only
  std::string address = "127.0.0.1";  // where the job's store is: MASTER_ADDR of the workers
  int port = 0;                       // MASTER_PORT; 0, in kStandalone only: any that is free
  std::string run_id;                 // kStandalone: empty if none was given

  bool store_apart = false;  // kDynamic only: nobody here holds the store, `weft_run store` does
  std::chrono::milliseconds store_grace{60'000};    // for that one to come back
  std::chrono::milliseconds suspicion_time{5'000};  // of silence, after which a node or a rank counts as lost

  std::chrono::milliseconds stop_grace{30'000};  // for workers to save and end after a signal

  int max_restarts = 0;
  std::chrono::milliseconds monitor_interval{100};
  std::chrono::milliseconds name_timeout{0};  // for `address`, if it is a name, to be known
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call{30'000};

  std::string log_dir;  // as written; empty: no logs
  std::optional<StreamChoice> tee;

  std::vector<std::string> command;  // the program and its arguments

  bool operator==(const LaunchOptions&) const = default;
};

// The time that a flag of weft_run or `weft_run store` gives.
// Errors: InvalidArgument, naming the flag, for one below `least` or above a day.
std::chrono::milliseconds ReadTime(absl::string_view flag, absl::Duration value, absl::Duration least);

// The face of weft_run: what --help prints.
FlagsUsage WeftRunUsage();

// Reads weft_run's own flags, which end at the first word that is no flag, or at "--"; what follows is the
// program with its arguments, unread.
//
// Errors: InvalidArgument with one line that names the flag, what was given and what was expected: also for
//         flags that contradict each other, and where there is no program.
LaunchOptions ParseLaunchOptions(int argc, const char* const* argv);

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_LAUNCH_OPTIONS_H_
