#ifndef WEFT_TOOLS_FAULTS_FAULT_PLAN_H_
#define WEFT_TOOLS_FAULTS_FAULT_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

// What is done to a job.
enum class Fault {
  kRank,   // SIGKILL of one rank
  kStop,   // SIGSTOP of one rank, which then answers nobody
  kAgent,  // SIGKILL of weft_run's agent; nobody is left to restart the ranks
  kGuard,  // SIGKILL of weft_run itself, the process above its agent
  kBoth,   // of both at once
  kDisk,   // the disk of the checkpoints is full until a save has failed for it
  kFlip,   // a bit of the newest checkpoint, and SIGKILL of one rank
  kShort,  // writes of checkpoints write a part of what they are given, from here to the next fault; nobody dies
  kClock,  // the wall clock of one rank jumps, to anywhere within 30 days; nobody dies
  kStore,  // SIGKILL of the job's store, a process apart that begins again a while later; no rank dies
  kHost,  // SIGKILL of a node: weft_run's two processes, its ranks, the memory of their snapshots; another takes its place
  kHosts,  // of all nodes at once: checkpoints are left, and a store apart
  kFreeze,  // SIGSTOP of a node for longer than the suspicion time, then SIGCONT: a machine that was away, and is back
  kPause,   // the same of weft_run's agent alone: its ranks go on meanwhile, and what they say waits
  kUnplug,  // the cable of a node is pulled for as long, and put back
};

// "rank", "stop", "agent", "guard", "both", "disk", "flip", "short", "clock", "store", "host", "hosts", "freeze", "pause",
// "unplug".
absl::string_view FaultName(Fault fault);
// Errors: InvalidArgument that lists the names.
Fault ParseFault(absl::string_view name);

bool HitsARank(Fault fault);       // one, of all
bool HitsANode(Fault fault);       // one, of all
bool NeedsNodes(Fault fault);      // several: it is others that miss a node
bool KillsALauncher(Fault fault);  // of one node, or of all
// Whether all ranks of a job on so many nodes end for it, whatever they do meanwhile, and others begin.
bool EndsALife(Fault fault, int num_nodes);

// When it is done.
enum class Moment {
  kStep,     // at any time in training
  kSave,     // while a checkpoint is being written
  kRestart,  // while ranks start again after the fault before: they meet, load, and have made no step yet
  kMeeting,  // earlier, of those that kill a launcher: the ranks of the life before are gone, others need not be there yet
};
bool IsInRestart(Moment moment);  // kRestart, kMeeting

struct PlannedFault {
  Fault fault = Fault::kRank;
  Moment moment = Moment::kStep;
  int rank =
      0;  // of kRank, kStop, kFlip and kClock; of kAgent, kGuard, kBoth, kHost, kFreeze, kPause and kUnplug: its node
  int64_t step = 0;  // not before this step has been made; of one in a restart that of the fault before
  double delay =
      0;  // in [0, 1): how far into a step, a save or a restart; of kStore also how long it is away

  bool operator==(const PlannedFault&) const = default;
};

struct FaultPlanOptions {
  int count = 20;
  uint64_t seed = 1;
  std::vector<Fault> kinds = {Fault::kRank};
  int num_ranks = 2;
  int64_t steps_between = 4;  // on average
};

// Faults in the order in which they are done, a function of the options alone: three of ten in saves, three of ten in
// restarts (rounded up; never the first), the rest in steps; of each kind as many as of any other, give or take one. Of those in
// restarts that kill a launcher, every other one comes before there are ranks, the first among them.
// Errors: InvalidArgument for less than one fault, kind, rank or step between.
std::vector<PlannedFault> PlanFaults(const FaultPlanOptions& options);

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_FAULT_PLAN_H_
