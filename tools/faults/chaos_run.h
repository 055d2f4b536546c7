// A training in peace, the same hurt by a plan, and what both have saved.

#ifndef WEFT_TOOLS_FAULTS_CHAOS_RUN_H_
#define WEFT_TOOLS_FAULTS_CHAOS_RUN_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tools/faults/chaos_report.h"
#include "tools/faults/fault_plan.h"

namespace weft {

struct ChaosOptions {
  FaultPlanOptions plan;
  std::string weft_run;  // programs
  std::string train_gpt;
  std::string libfaketime;  // libraries: for jumps of clocks, and for short writes
  std::string cut_writes;
  std::vector<std::string>
      train_flags;         // of train_gpt, without those that the run sets: steps, checkpoints, output
  int num_nodes = 1;       // of the job; several weft_run on this machine, and a store apart
  int64_t save_every = 3;  // steps
  int max_restarts = 3;    // of weft_run, since the last save; 0: whoever runs it starts it again
  std::chrono::milliseconds suspicion_time{5000};  // weft_run's, of the job that is hurt
  std::chrono::milliseconds store_away{
      1000};                          // that a killed store is away at most, and a tenth of it at least
  std::chrono::seconds patience{60};  // for the next step after a fault
  std::string folder;                 // an empty one, for checkpoints and logs
};

// Trains to the end in peace, then the same again with the plan's faults, started again whenever it has ended otherwise
// than by its own end, and compares what both have saved last (--save) byte by byte. `say` gets a line per fault, and one per
// kind with its times. Faults that the machine refuses are left out, with a line that says why.
// Errors: InvalidArgument for ranks that the nodes do not divide, or a single node that freezes or is unplugged; FailedPrecondition, if the
//         machine refuses all faults, the job fails without any fault, or its store ends by itself; DeadlineExceeded, if no step follows a fault within `patience`, with where its log is.
ChaosReport RunChaos(const ChaosOptions& options, const std::function<void(const std::string&)>& say);

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_CHAOS_RUN_H_
