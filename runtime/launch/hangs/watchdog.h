// Finds hangs and says why.

#ifndef WEFT_RUNTIME_LAUNCH_HANGS_WATCHDOG_H_
#define WEFT_RUNTIME_LAUNCH_HANGS_WATCHDOG_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/launch/hangs/hang_verdict.h"
#include "runtime/launch/hangs/rank_status.h"
#include "runtime/launch/hangs/watchdog_options.h"
#include "runtime/store/store.h"

namespace weft {

// Explains hangs while they last: when a collective is late, asks all ranks where they are, tells one verdict
// for the job, and ends the groups of ranks that wait for each other in a circle, with that verdict as their
// error. So a mismatch across groups is an error within 5 s (late_after, and two questions of an interval or
// two each, and what it takes to read thousands of statuses), whatever the timeout; a slow rank is only
// named. Of the processes of a job, one that is late asks and judges for all, as long as it is late; the others learn from it
// that their operations are in a circle.
//
// Cost:    a thread, which looks at each of its ranks' recorders every interval, and then, with a store, asks
//          it once (one key) whether somebody calls for statuses. While a rank is late, each rank writes one key per call, and
//          one that is late reads another one each interval; the process that judges reads those of all ranks for each call.
// Threads: any.
// Source:  the idea of PyTorch's flight recorder with desync debug; the comparison happens at run time here.
class Watchdog {
 public:
  // A rank of this process.
  struct Rank {
    int rank = 0;
    const FlightRecorder* recorder = nullptr;
    std::function<void(absl::StatusCode code, const std::string& message)> fail = {};  // ends its groups
  };

  // `store` may be null if all ranks are of this process. It outlives the watchdog.
  Watchdog(int world_size, Store* store, WatchdogOptions options = {});
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Begins to look after a rank, whose recorder lives until Forget has returned.
  void Watch(Rank rank);

  // The rank ends as `how` says: "has returned". If it is watched here, it is no longer.
  void Forget(int rank, const std::string& how);

 private:
  // What has been made of a late operation.
  struct Late {
    double next_tell_seconds = 0;
    bool in_circle = false;  // when it was judged last
  };

  void Loop();
  void Round();
  // What is to be judged now; nullopt: answers are awaited, or another process judges.
  std::optional<std::vector<RankReport>> Ask(const std::vector<RankStatus>& own);
  // Goes on reading what the ranks of other processes have answered to the own call, for about an interval. True: of every
  // rank there is an answer, or it has had time for one.
  bool ReadAnswers();
  std::vector<RankReport> Collect(const std::vector<RankStatus>& own);
  void AnswerCall(const std::vector<RankStatus>& own);
  // Calls for statuses, unless another process does. True: this one judges the answers.
  bool Call();
  // Tells the others, now and then, that this process still reads what its call has brought.
  void TellThatItReads();
  bool AnotherJudges() const;
  // Another process may judge, if it was this one.
  void StopJudging() noexcept;
  void JudgeAll(const std::vector<RankReport>& reports);
  // `operation`: its key, as `late_` has it; `rank` waits in it.
  void Judge(const std::string& operation, int rank, const std::vector<RankReport>& reports);
  void TellDeadlock(const std::string& operation, const std::string& text);
  void EndIfDeadlocked(const RankStatus& status);
  bool IsLate(const RankStatus& status) const;
  // True once for the job; the text that all agree on is left in `text`.
  bool IsFirst(const std::string& key, std::string* text);

  const int world_size_;
  Store* const store_;
  WatchdogOptions options_;
  std::mutex mutex_;  // of all below; a round holds it
  std::condition_variable wake_;
  bool stop_ = false;
  std::map<int, Rank> ranks_;
  std::map<int, std::string> gone_;
  std::map<std::string, Late> late_;  // by the operation's key; as this process has judged it
  std::string call_text_;             // the last call for statuses, as the store has it
  int64_t call_ = 0;                  // its number
  std::chrono::steady_clock::time_point call_came_at_;  // or a sign that its caller still reads the answers
  std::optional<int64_t> own_call_;  // one that this process has made, and whose answers it has not judged
  std::chrono::steady_clock::time_point called_at_;
  int64_t num_signs_ = 0;              // that this process has given, of all its calls
  std::map<int, RankStatus> answers_;  // to that call, as far as they have been read
  // Answers are read in turns of all ranks that have not answered. Of this turn: those that are yet to be read, those that had
  // not answered, and when it began.
  std::vector<int> unread_;
  std::vector<int> unanswered_;
  std::optional<std::chrono::steady_clock::time_point> turn_began_at_;
  std::map<int, std::chrono::steady_clock::time_point> silent_since_;  // ranks that do not answer
  std::optional<std::string> deadlock_;                                // the text of the first that was found
  std::set<std::string> deadlocked_;  // operations that this process has found in a circle
  std::set<std::string> told_;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_HANGS_WATCHDOG_H_
