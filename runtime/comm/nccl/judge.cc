#include "runtime/comm/nccl/judge.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error_text.h"
#include "runtime/comm/group_text.h"

namespace weft {
namespace {

constexpr char kFailed[] = "failed";
constexpr char kNoDifference[] = "no difference";

// "<number>\n<rest>" in two; false for what is none.
bool Split(const std::string& text, int64_t* number, std::string* rest) {
  const size_t end = text.find('\n');
  if (end == std::string::npos || !absl::SimpleAtoi(text.substr(0, end), number)) return false;
  *rest = text.substr(end + 1);
  return true;
}

}  // namespace

std::optional<Error> AnnouncedEnd(NcclHub& hub, const std::string& prefix) {
  const std::optional<std::string> said = hub.store().TryGet(prefix + kFailed);
  return said.has_value() ? ErrorFromText(*said) : std::nullopt;
}

std::string NcclJudge::AnswerKey(int member) const { return absl::StrCat(prefix_, "at/", member); }

std::string NcclJudge::LastKey(int member) const { return absl::StrCat(prefix_, "last/", member); }

void NcclJudge::AnswerLast(const CallLog& own) {
  constexpr size_t kKept = 2;  // enough to compare the last calls: a late member has not come further
  hub_.store().Set(LastKey(rank_), own.Told(kKept).Encode());
}

void NcclJudge::Leave() {
  const int num_members = static_cast<int>(ranks_.size());
  const std::string key = absl::StrCat(prefix_, "left");
  if (hub_.store().Add(key, 1) != num_members) return;
  for (int member = 0; member < num_members; ++member) {
    hub_.store().Delete(AnswerKey(member));
    hub_.store().Delete(LastKey(member));
  }
  hub_.store().Delete(key);
}

void NcclJudge::Answer(int64_t call, const CallLog& own) {
  hub_.store().Set(AnswerKey(rank_), absl::StrCat(call, "\n", own.Encode()));
}

void NcclJudge::Announce(const Error& error) {
  hub_.store().CompareSet(prefix_ + kFailed, "", ErrorText(error.code(), error.message()));
  hub_.Call();
}

// Members that are late in one collective agree on who compares by its number; a message's end asks by
// itself.
void NcclJudge::Ask(const Late& late, bool expired) {
  const bool is_message = late.kind == CollectiveKind::kSendRecv;
  const int round = question_.has_value() && question_->sequence == late.sequence ? question_->round + 1 : 0;
  question_ = {.kind = late.kind,
               .sequence = late.sequence,
               .round = round,
               .expired = expired,
               .asked_after = late.waited,
               .asked_at = std::chrono::steady_clock::now()};
  const std::string key =
      absl::StrCat(prefix_, "judge/", late.sequence, "/", expired ? "expired" : absl::StrCat(round));
  const std::string me = absl::StrCat(rank_);
  question_->asks = is_message || hub_.store().CompareSet(key, "", me) == me;
  if (question_->asks) question_->call = hub_.Call();
}

NcclJudge::Statements NcclJudge::ReadLogs(const CallLog& own, int64_t call) {
  Statements said;
  said.logs.resize(ranks_.size());
  said.has_finished.resize(ranks_.size());
  for (int member = 0; member < static_cast<int>(ranks_.size()); ++member) {
    if (member == rank_) {
      said.logs[member] = own;
      continue;
    }
    // Asked before the log is read. A rank writes its last log and only then counts as finished; what it answered earlier may
    // lack its last calls.
    const bool has_finished = hub_.HasFinished(ranks_[member]);
    said.has_finished[member] = has_finished;
    if (const std::optional<std::string> last = hub_.store().TryGet(LastKey(member))) {
      said.logs[member] = CallLog::Decode(*last);
      continue;
    }
    if (has_finished) continue;  // it has never had this group
    const std::optional<std::string> text = hub_.store().TryGet(AnswerKey(member));
    int64_t answered = 0;
    std::string log;
    const bool has_answered = text.has_value() && Split(*text, &answered, &log);
    said.all = said.all && has_answered && answered >= call;
    if (has_answered) said.logs[member] = CallLog::Decode(log);
  }
  return said;
}

NcclJudge::Comparison NcclJudge::Compare(const CallLog& own) {
  const std::string key = absl::StrCat(prefix_, "compares");  // who does, and then what it has found
  const std::string me = absl::StrCat(rank_);
  const std::string held = hub_.store().CompareSet(key, "", me);
  Comparison comparison;
  comparison.is_final = held == kNoDifference;
  if (held != me) return comparison;
  if (!compare_call_.has_value()) compare_call_ = hub_.Call();
  const Statements said = ReadLogs(own, *compare_call_);
  if (const std::optional<std::string> text = FindDisagreement(name_, ranks_, said.logs)) {
    comparison.difference = Error(absl::StatusCode::kInvalidArgument, *text);
  } else if (said.all) {
    comparison.is_final = true;
    hub_.store().Set(key, kNoDifference);
  }
  return comparison;
}

std::optional<Error> NcclJudge::Verdict(const Late& late, const Statements& said, bool is_final) {
  if (const std::optional<std::string> text = FindDisagreement(name_, ranks_, said.logs)) {
    return Error(absl::StatusCode::kInvalidArgument, *text);
  }
  if (!is_final) return std::nullopt;
  const std::vector<int> missing = FindMissing(rank_, late.kind, late.sequence, said.logs);
  const std::string call =
      absl::StrCat(OperationText(name_, late.kind, late.sequence), late.call.empty() ? "" : ", ", late.call);
  for (int member : missing) {
    if (!said.has_finished[member]) continue;
    return Error(absl::StatusCode::kAborted,
                 absl::StrCat(call, ": world rank ", ranks_[rank_], " waits for ",
                              WorldRanksText(ranks_, {member}), ", whose rank function has returned"));
  }
  if (!question_->expired) return std::nullopt;
  // Where all have come, the end is near, or NCCL is stuck.
  if (missing.empty() && late.waited < late.timeout + hub_.options().patience) return std::nullopt;
  if (!missing.empty()) {
    return Error(absl::StatusCode::kDeadlineExceeded,
                 TimeoutText(call, ranks_[rank_], late.timeout, ranks_, missing));
  }
  return Error(absl::StatusCode::kDeadlineExceeded,
               absl::StrCat(WaitedText(call, ranks_[rank_], late.timeout),
                            "all members have come to it, but NCCL does not end it (see NCCL_DEBUG=INFO)"));
}

std::optional<Error> NcclJudge::Judge(const Late& late, const CallLog& own) {
  if (question_.has_value() && (question_->kind != late.kind || question_->sequence != late.sequence)) {
    question_.reset();
  }
  const auto late_after = std::min(hub_.options().late_after, late.timeout / 2);
  if (late.waited < late_after) return std::nullopt;
  if (std::optional<Error> told = Announced()) return told;
  const bool expired = late.waited >= late.timeout;
  if (!question_.has_value() || (expired && !question_->expired) ||
      (!expired && late.waited >= 2 * question_->asked_after)) {
    Ask(late, expired);
  }
  if (question_->settled) return std::nullopt;
  const auto since = std::chrono::steady_clock::now() - question_->asked_at;
  // The member that compares may have died over it.
  const bool overdue = since > 3 * hub_.options().patience;
  if (!question_->asks && !(question_->expired && overdue)) return std::nullopt;
  const Statements said = ReadLogs(own, question_->call);
  const bool is_final = said.all || since > hub_.options().patience;
  std::optional<Error> verdict = Verdict(late, said, is_final);
  // A member that has returned told its reason before.
  if (verdict.has_value() && verdict->code() == absl::StatusCode::kAborted) {
    if (std::optional<Error> told = Announced()) return told;
  }
  // A rank that is missing now may return from its function next: while its peer waits, look again.
  question_->settled = is_final && !verdict.has_value() && !question_->expired;
  return verdict;
}

}  // namespace weft
