#ifndef WEFT_RUNTIME_COMM_NCCL_JUDGE_H_
#define WEFT_RUNTIME_COMM_NCCL_JUDGE_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/nccl/call_log.h"
#include "runtime/comm/nccl/hub.h"

namespace weft {

// What a member of the group that met at `prefix` has told of its end (NcclJudge::Announce), if one has.
std::optional<Error> AnnouncedEnd(NcclHub& hub, const std::string& prefix);

// Why a member's operation does not end. While it is late, now and then, all ranks are asked what they have
// called (NcclHub::Call), and leave their logs in the store; one of the members that are late compares them.
// What ends the group, any member leaves there too, and the first stays.
//
// Cost:    nothing while nobody is late. Of members that NCCL has reported an error to, one calls the store three times for each
//          other member and look, until all have answered; the rest twice for each look. At the end of a group each member calls the
//          store two or three times, and the last to leave twice more for each member.
// Threads: the monitor's.
class NcclJudge {
 public:
  // The oldest operation that has not ended.
  struct Late {
    CollectiveKind kind = CollectiveKind::kBarrier;
    uint64_t sequence = 0;
    std::string call;  // "all_reduce(f32, sum, count 3)"; empty for messages
    std::chrono::milliseconds waited = {};
    std::chrono::milliseconds timeout = {};
  };

  NcclJudge(NcclHub& hub, std::string prefix, std::string name, std::vector<int> ranks, int rank)
      : hub_(hub),
        prefix_(std::move(prefix)),
        name_(std::move(name)),
        ranks_(std::move(ranks)),
        rank_(rank) {}

  // Why the group is to end now; nullopt while it may go on. `own` is this member's log.
  std::optional<Error> Judge(const Late& late, const CallLog& own);
  void NothingLate() { question_.reset(); }

  // Of a member to which NCCL has reported an error, again and again until it ends the group: in what the members' calls
  // differ, which NCCL may have met in words of its own. The first member that calls it asks all and compares; the others hear
  // of a difference by its end of the group (Announced).
  struct Comparison {
    std::optional<Error> difference;
    bool is_final = false;  // all have answered, and nothing differs
  };
  Comparison Compare(const CallLog& own);

  // Answers a question of any rank.
  void Answer(int64_t call, const CallLog& own);
  // Before this rank leaves the group, or counts as finished: all that it has called. Any thread.
  void AnswerLast(const CallLog& own);
  // This member has left: the last one to leave takes away what all have said. Any thread.
  void Leave();

  // What has ended the group: tells the others; what a member has told.
  void Announce(const Error& error);
  std::optional<Error> Announced() { return AnnouncedEnd(hub_, prefix_); }

 private:
  struct Question {
    CollectiveKind kind;
    uint64_t sequence = 0;
    int round = 0;
    int64_t call = 0;
    bool asks = false;     // this member compares; otherwise it waits for the one that does
    bool expired = false;  // the timeout has passed
    bool settled = false;  // all have answered
    std::chrono::milliseconds asked_after = {};
    std::chrono::steady_clock::time_point asked_at;
  };

  std::string AnswerKey(int member) const;
  std::string LastKey(int member) const;
  void Ask(const Late& late, bool expired);
  // What the members have said so far.
  struct Statements {
    CallLogs logs;
    // By member: whether its rank had finished before its log was read. Then the log is its last, or it has none.
    std::vector<bool> has_finished;
    bool all = true;  // whether all have answered `call`, a number of NcclHub::Call
  };
  Statements ReadLogs(const CallLog& own, int64_t call);
  std::optional<Error> Verdict(const Late& late, const Statements& said, bool is_final);

  NcclHub& hub_;
  const std::string prefix_;
  const std::string name_;
  const std::vector<int> ranks_;
  const int rank_;
  std::optional<Question> question_;
  std::optional<int64_t> compare_call_;  // by which Compare asked
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_JUDGE_H_
