#include "runtime/launch/hangs/watchdog.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// "<number> <rank>", or "<number> <rank> <sign>": the last call for statuses, and who made it and judges; signs follow one
// another while it reads the answers. "<number>": nobody judges any more.
constexpr char kCallKey[] = "hang/call";

// Watchdogs look at their own pace: an answer comes within one interval, or two of a busy machine.
constexpr int kAnswerIntervals = 3;

// Whoever judges calls again after two intervals, and what it takes to read thousands of statuses; it gives a sign after each
// kSignIntervals of that. After kCallIntervals without a call or a sign it has stopped, and another judges.
constexpr int kSignIntervals = 5;
constexpr int kCallIntervals = 25;

std::optional<int> CallerOf(const std::string& call) {
  const std::vector<std::string> words = absl::StrSplit(call, ' ');
  int rank = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &rank)) return std::nullopt;
  return rank;
}

std::string StatusKey(int rank) { return absl::StrCat("hang/status/", rank); }

// A group's part of a key, the same on all its members. FlightGroup::Key has the group's name, and thousands of ranks if no
// runs of them are alike: it may be longer than a store's keys.
std::string ShortKey(const std::string& group) {
  constexpr size_t kLongest = 1024;
  if (group.size() <= kLongest) return group;
  return absl::StrCat(group.substr(0, kLongest), "...",
                      CrcText(Crc64(group.data(), static_cast<int64_t>(group.size()))));
}

// What a rank waits in, as part of a key, the same on all members. Messages are numbered apart from collectives, and by each
// member for itself.
std::string OperationKey(int rank, const PendingOperation& operation) {
  return absl::StrCat(ShortKey(operation.group), "/",
                      operation.collective ? "" : absl::StrCat("message/", rank, "/"), operation.sequence);
}

std::string DeadlockKey(const std::string& operation) { return absl::StrCat("hang/deadlock/", operation); }

double Seconds(std::chrono::milliseconds duration) { return std::chrono::duration<double>(duration).count(); }

void TellStderr(const std::string& line) {
  std::fputs((line + "\n").c_str(), stderr);
  std::fflush(stderr);
}

// "<call> <status>": a status says which call it answers.
std::optional<RankStatus> ParseAnswer(const std::optional<std::string>& text, int64_t call) {
  if (!text.has_value()) return std::nullopt;
  const size_t space = text->find(' ');
  int64_t answered = 0;
  if (space == std::string::npos || !absl::SimpleAtoi(text->substr(0, space), &answered)) return std::nullopt;
  if (answered < call) return std::nullopt;
  return RankStatus::FromJson(text->substr(space + 1));
}

}  // namespace

Watchdog::Watchdog(int world_size, Store* store, WatchdogOptions options)
    : world_size_(world_size), store_(store), options_(std::move(options)) {
  if (!options_.tell) options_.tell = TellStderr;
  if (!options_.now) options_.now = std::chrono::steady_clock::now;
  options_.interval = std::max(ClampTimeout(options_.interval), std::chrono::milliseconds(1));
  // What is told doubles from there: 0 would stay 0.
  options_.tell_after = std::max(options_.tell_after, options_.interval);
  thread_ = std::thread([this] { Loop(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::Watch(Rank rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ranks_[rank.rank] = std::move(rank);
}

void Watchdog::Forget(int rank, const std::string& how) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (CallerOf(call_text_) == rank) StopJudging();
  ranks_.erase(rank);
  gone_[rank] = how;
}

void Watchdog::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!wake_.wait_for(lock, options_.interval, [this] { return stop_; })) {
    try {
      Round();
    } catch (const Error& error) {
      // Mostly the store is gone: whoever watches it tells so. The job may go on without explanations.
      if (error.code() == absl::StatusCode::kInvalidArgument && told_.insert("refused").second) {
        options_.tell(absl::StrCat("weft: hangs cannot be explained: ", error.message()));
      }
    } catch (const std::exception&) {
      // Nor without memory for them.
    }
  }
}

bool Watchdog::IsLate(const RankStatus& status) const {
  const PendingOperation* const operation = status.waits_in();
  return operation != nullptr && operation->seconds >= Seconds(options_.late_after);
}

void Watchdog::Round() {
  std::vector<RankStatus> own;
  for (const auto& [number, rank] : ranks_) own.push_back(StatusOf(number, *rank.recorder));
  if (store_ != nullptr) AnswerCall(own);
  if (std::none_of(own.begin(), own.end(), [this](const RankStatus& status) { return IsLate(status); })) {
    late_.clear();
    own_call_.reset();
    silent_since_.clear();  // nobody asks
    return StopJudging();
  }
  if (store_ != nullptr) {
    // As the others' come: names that are no UTF-8 are changed on the way, and must be the same.
    for (RankStatus& status : own) status = RankStatus::FromJson(status.ToJson());
  }
  if (const std::optional<std::vector<RankReport>> reports = Ask(own)) JudgeAll(*reports);
  for (const RankStatus& status : own) EndIfDeadlocked(status);
}

std::optional<std::vector<RankReport>> Watchdog::Ask(const std::vector<RankStatus>& own) {
  if (store_ == nullptr) return Collect(own);
  // Statuses are asked for anew each time they are judged: what has moved meanwhile waits in no circle.
  if (!own_call_.has_value()) {
    // `late_` stays: a circle that this process has seen counts, whoever judges in between.
    if (!Call()) silent_since_.clear();
    return std::nullopt;
  }
  if (!ReadAnswers()) {
    TellThatItReads();
    return std::nullopt;
  }
  own_call_.reset();
  return Collect(own);
}

// Not all at once: to read thousands takes too long. A rank that ends meanwhile would be held up (Forget), and others wait for a
// sign.
bool Watchdog::ReadAnswers() {
  const auto begin = options_.now();
  if (!turn_began_at_.has_value()) turn_began_at_ = begin;
  while (!unread_.empty()) {
    if (options_.now() - begin > options_.interval) return false;
    const int rank = unread_.back();
    if (ranks_.count(rank) == 0 && gone_.count(rank) == 0) {
      std::optional<RankStatus> answer = ParseAnswer(store_->TryGet(StatusKey(rank)), *own_call_);
      if (answer.has_value()) {
        answers_[rank] = std::move(*answer);
        silent_since_.erase(rank);
      } else {
        unanswered_.push_back(rank);
      }
    }
    unread_.pop_back();
  }
  // As of when the turn began: whoever was read early in it has had less time to answer than whoever was read late.
  const bool is_patient = *turn_began_at_ - called_at_ < kAnswerIntervals * options_.interval;
  if (unanswered_.empty() || !is_patient) return true;
  unread_.swap(unanswered_);
  turn_began_at_.reset();
  return false;
}

void Watchdog::TellThatItReads() {
  if (call_ != *own_call_) return;  // another has called since
  const auto now = options_.now();
  if (now - call_came_at_ < kSignIntervals * options_.interval) return;
  const std::string text = absl::StrCat(call_, " ", ranks_.begin()->first, " ", ++num_signs_);
  if (store_->CompareSet(kCallKey, call_text_, text) != text) return;
  call_text_ = text;
  call_came_at_ = now;
}

bool Watchdog::AnotherJudges() const {
  const std::optional<int> caller = CallerOf(call_text_);
  if (!caller.has_value() || ranks_.count(*caller) > 0 || gone_.count(*caller) > 0) return false;
  return options_.now() - call_came_at_ < kCallIntervals * options_.interval;
}

bool Watchdog::Call() {
  if (AnotherJudges()) return false;
  const std::string text = absl::StrCat(call_ + 1, " ", ranks_.begin()->first);
  if (store_->CompareSet(kCallKey, call_text_, text) != text) return false;
  call_text_ = text;
  ++call_;
  own_call_ = call_;
  answers_.clear();
  unread_.resize(world_size_);
  std::iota(unread_.rbegin(), unread_.rend(), 0);  // read from the back
  unanswered_.clear();
  turn_began_at_.reset();
  called_at_ = call_came_at_ = options_.now();
  return true;
}

void Watchdog::StopJudging() noexcept {
  const std::optional<int> caller = CallerOf(call_text_);
  if (!caller.has_value() || ranks_.count(*caller) == 0) return;
  try {
    const std::string text = absl::StrCat(call_);
    store_->CompareSet(kCallKey, call_text_, text);
    call_text_ = text;
  } catch (const std::exception&) {
    // Of the store: another judges when it has waited for long enough.
  }
}

void Watchdog::AnswerCall(const std::vector<RankStatus>& own) {
  const std::optional<std::string> text = store_->TryGet(kCallKey);
  if (!text.has_value() || *text == call_text_) return;
  call_text_ = *text;
  int64_t call = 0;
  if (!absl::SimpleAtoi(text->substr(0, text->find(' ')), &call)) return;
  call_came_at_ = options_.now();
  if (call == call_) return;  // a sign
  call_ = call;
  for (const RankStatus& status : own) {
    store_->Set(StatusKey(status.rank), absl::StrCat(call, " ", status.ToJson()));
  }
}

std::vector<RankReport> Watchdog::Collect(const std::vector<RankStatus>& own) {
  std::vector<RankReport> reports(world_size_);
  for (int rank = 0; rank < world_size_; ++rank) reports[rank].rank = rank;
  for (const auto& [rank, how] : gone_) reports[rank].gone = how;
  for (const RankStatus& status : own) reports[status.rank].status = status;
  if (store_ == nullptr) return reports;
  const auto now = options_.now();
  for (RankReport& report : reports) {
    if (report.status.has_value() || !report.gone.empty()) continue;
    if (const auto answer = answers_.find(report.rank); answer != answers_.end()) {
      report.status = std::move(answer->second);
    } else {
      const auto since = silent_since_.try_emplace(report.rank, called_at_).first->second;
      report.silent_seconds = std::chrono::duration<double>(now - since).count();
    }
  }
  return reports;
}

bool Watchdog::IsFirst(const std::string& key, std::string* text) {
  if (store_ == nullptr) return told_.insert(key).second;
  const std::string own = absl::StrCat(ranks_.begin()->first, " ", *text);
  const std::string agreed = store_->CompareSet(key, "", own);
  *text = agreed.substr(agreed.find(' ') + 1);
  return agreed == own && told_.insert(key).second;
}

// Ranks that wait in one operation are in the same circle, if in any, and told of together: one of them is judged for all.
void Watchdog::JudgeAll(const std::vector<RankReport>& reports) {
  // A rank whose own thread waits comes first: only such ranks make circles. Among equals, whoever has waited longest.
  const auto precedence = [&](int rank) {
    const RankStatus& status = *reports[rank].status;
    return std::pair(status.held_by() != nullptr, status.waits_in()->seconds);
  };
  std::map<std::string, int> ranks;  // by the operation's key
  for (const RankReport& report : reports) {
    if (!report.status.has_value() || !IsLate(*report.status)) continue;
    const std::string operation = OperationKey(report.rank, *report.status->waits_in());
    const auto [found, is_new] = ranks.try_emplace(operation, report.rank);
    if (!is_new && precedence(report.rank) > precedence(found->second)) found->second = report.rank;
  }
  std::erase_if(late_, [&](const auto& late) { return ranks.count(late.first) == 0; });
  for (const auto& [operation, rank] : ranks) Judge(operation, rank, reports);
}

void Watchdog::Judge(const std::string& operation, int rank, const std::vector<RankReport>& reports) {
  const std::optional<HangVerdict> verdict = ExplainHang(reports, rank);
  if (!verdict.has_value()) return;
  Late& late =
      late_.try_emplace(operation, Late{.next_tell_seconds = Seconds(options_.tell_after)}).first->second;
  // Twice: statuses are not of one moment, and a circle that is real stays.
  if (std::exchange(late.in_circle, verdict->deadlock) && verdict->deadlock) {
    return TellDeadlock(operation, verdict->text);
  }
  const double seconds = reports[rank].status->waits_in()->seconds;
  if (verdict->deadlock || seconds < late.next_tell_seconds) return;
  // Whoever judged before, or judges next, finds the same key: the times double alike.
  std::string text = verdict->text;
  const std::string key = absl::StrCat("hang/told/", operation, "/", late.next_tell_seconds);
  const bool is_first = IsFirst(key, &text);
  while (late.next_tell_seconds <= seconds) late.next_tell_seconds *= 2;
  if (is_first) options_.tell(absl::StrCat("weft: waiting: ", text));
}

void Watchdog::TellDeadlock(const std::string& operation, const std::string& text) {
  if (!deadlock_.has_value()) {
    deadlock_ = absl::StrCat("deadlock: ", text);
    if (IsFirst("hang/deadlock", &*deadlock_)) options_.tell(absl::StrCat("weft: ", *deadlock_));
  }
  deadlocked_.insert(operation);
  if (store_ != nullptr) store_->Set(DeadlockKey(operation), *deadlock_);
}

// Only what a rank's own thread waits in makes a circle.
void Watchdog::EndIfDeadlocked(const RankStatus& status) {
  const PendingOperation* const held_by = status.held_by();
  if (!IsLate(status) || held_by == nullptr || !held_by->collective) return;
  const std::string operation = OperationKey(status.rank, *held_by);
  std::optional<std::string> text;
  if (deadlocked_.count(operation) > 0) {
    text = deadlock_;
  } else if (store_ != nullptr) {
    text = store_->TryGet(DeadlockKey(operation));
  }
  if (text.has_value()) ranks_.at(status.rank).fail(absl::StatusCode::kAborted, *text);
}

}  // namespace weft
