// What became of a job that was hurt, and how long it took to go on.

#ifndef WEFT_TOOLS_FAULTS_CHAOS_REPORT_H_
#define WEFT_TOOLS_FAULTS_CHAOS_REPORT_H_

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/faults/fault_plan.h"

namespace weft {

// What became of a job that was hurt.
struct ChaosReport {
  int planned = 0;
  int kills = 0;       // faults that were done
  int recovered = 0;   // after which a step followed, or the job's end
  bool equal = false;  // the final state is that of a job that nobody hurt, bit for bit
  // Seconds from a fault to the next step. If ranks are killed again before that step, the time runs on. If another kind of
  // fault comes before it, the first fault has no time. From the return of a store that was away, without which training goes
  // on for a while, and of a frozen node.
  double median_s = 0;
  double worst_s = 0;
  int left_behind = 0;  // processes, names in shared memory, temporary files, folders without a manifest
  int in_save = 0;      // faults while a checkpoint was being written
  int in_restart = 0;   // faults before the first step after another
  int skipped = 0;      // faults that the machine refuses: of a kind that needs a mount, or a library

  // Of the seconds after faults that end all ranks, medians: until the processes of all ranks are there again, until those
  // have met and rank 0 looks into the checkpoints' folder, and until there is a step, with loading in it.
  double restart_s = 0;
  double meet_s = 0;
  double load_s = 0;
  bool within_target = true;  // no seconds of the last fault before a step were more than TargetSeconds

  bool ok() const {
    return kills > 0 && kills + skipped == planned && recovered == kills && equal && left_behind == 0;
  }
  std::string ToJson() const;  // one line without its end, the fields in this order, without what was planned
};

// What is aimed at from a fault to the next step: 5 s after SIGKILL of a rank, and more by the suspicion time where one, or a
// node, has to be missed first; nothing for other kinds. It is meant for one fault: of several before one step the last alone
// is held to it. For whoever measures on a machine that does nothing else: no part of ok().
std::optional<double> TargetSeconds(Fault fault, std::chrono::milliseconds suspicion_time);

// The seconds from faults to next steps, and what they were spent on.
class RecoveryTimes {
 public:
  using Clock = std::chrono::steady_clock;

  // A fault was done, and waits for a step, with those that wait already.
  void Strike(Fault fault, Clock::time_point at) { waiting_.emplace_back(fault, at); }
  // Those that wait have done so no longer than since then: until then there was something that no restart could help.
  void Postpone(Clock::time_point since);
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  Clock::time_point last_strike() const { return waiting_.back().second; }  // of those that wait
  // The step that they have waited for. Returns the seconds of the last of them.
  double Answer(Clock::time_point step);
  // Of one of them: the fault, all ranks there again, all of them met, the step.
  void AddParts(const std::array<Clock::time_point, 4>& times);

  // Puts them into the report; `say` gets a line per kind of fault, and one more where ranks were killed between such a fault
  // and the step.
  void Summarize(std::chrono::milliseconds suspicion_time, const std::function<void(const std::string&)>& say,
                 ChaosReport* report) const;

 private:
  struct Seconds {
    std::vector<double> alone;         // no fault followed before the step
    std::vector<double> before_kills;  // ranks were killed before the step
  };

  std::vector<std::pair<Fault, Clock::time_point>> waiting_;
  std::map<Fault, Seconds> seconds_;
  std::array<std::vector<double>, 3> parts_;
};

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_CHAOS_REPORT_H_
