#include "runtime/launch/hangs/watchdog.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr char kCallKey[] = "hang/call";

// Watchdogs look at their own pace: an answer comes within one interval, or two of a busy machine.
constexpr int kAnswerIntervals = 3;

std::string StatusKey(int rank) { return absl::StrCat("hang/status/", rank); }

// A group's part of a key, the same on all its members. FlightGroup::Key has the group's name, and thousands of ranks if no runs
// of them are alike: it may be longer than a store's keys.
std::string ShortKey(const std::string& group) {
  constexpr size_t kLongest = 1024;
  if (group.size() <= kLongest) return group;
  return absl::StrCat(group.substr(0, kLongest), "...",
                      CrcText(Crc64(group.data(), static_cast<int64_t>(group.size()))));
}

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
  ranks_.erase(rank);
  late_.erase(rank);
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
    return;
  }
  // Statuses are asked for anew each time they are judged: what has moved meanwhile waits in no circle.
  if (store_ != nullptr && !own_call_.has_value()) {
    own_call_ = store_->Add(kCallKey, 1);
    called_at_ = std::chrono::steady_clock::now();
    return;
  }
  const std::vector<RankReport> reports = Collect(own);
  const bool all_answered = std::all_of(reports.begin(), reports.end(), [](const RankReport& report) {
    return report.status.has_value() || !report.gone.empty();
  });
  const auto patience = kAnswerIntervals * options_.interval;
  if (store_ != nullptr && !all_answered && std::chrono::steady_clock::now() - called_at_ < patience) return;
  for (const RankStatus& status : own) {
    if (IsLate(status)) {
      Judge(ranks_.at(status.rank), status, reports);
    } else {
      late_.erase(status.rank);
    }
  }
  own_call_.reset();
}

void Watchdog::AnswerCall(const std::vector<RankStatus>& own) {
  const std::optional<std::string> text = store_->TryGet(kCallKey);
  int64_t call = 0;
  if (!text.has_value() || !absl::SimpleAtoi(*text, &call) || call == call_) return;
  call_ = call;
  for (const RankStatus& status : own) {
    store_->Set(StatusKey(status.rank), absl::StrCat(call, " ", status.ToJson()));
  }
}

std::vector<RankReport> Watchdog::Collect(const std::vector<RankStatus>& own) {
  std::vector<RankReport> reports(world_size_);
  for (int rank = 0; rank < world_size_; ++rank) reports[rank].rank = rank;
  for (const auto& [rank, how] : gone_) reports[rank].gone = how;
  for (const RankStatus& status : own) {
    // As the others' come: names that are no UTF-8 are changed on the way, and must be the same.
    reports[status.rank].status = store_ == nullptr ? status : RankStatus::FromJson(status.ToJson());
  }
  if (store_ == nullptr) return reports;
  const auto now = std::chrono::steady_clock::now();
  for (RankReport& report : reports) {
    if (report.status.has_value() || !report.gone.empty()) continue;
    report.status = ParseAnswer(store_->TryGet(StatusKey(report.rank)), *own_call_);
    if (report.status.has_value()) {
      silent_since_.erase(report.rank);
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

void Watchdog::EndDeadlock(const Rank& rank, const std::string& text) {
  if (!deadlock_.has_value()) {
    deadlock_ = absl::StrCat("deadlock: ", text);
    if (IsFirst("hang/deadlock", &*deadlock_)) options_.tell(absl::StrCat("weft: ", *deadlock_));
  }
  rank.fail(absl::StatusCode::kAborted, *deadlock_);
}

void Watchdog::Judge(const Rank& rank, const RankStatus& status, const std::vector<RankReport>& reports) {
  const std::optional<HangVerdict> verdict = ExplainHang(reports, rank.rank);
  if (!verdict.has_value()) return;
  const PendingOperation& operation = *status.waits_in();
  Late& late = late_[rank.rank];
  // Messages are numbered apart from collectives, and by each member for itself.
  const std::string number = operation.collective
                                 ? absl::StrCat(operation.sequence)
                                 : absl::StrCat("message/", rank.rank, "/", operation.sequence);
  if (late.group != operation.group || late.number != number) {
    late = {operation.group, number, Seconds(options_.tell_after), /*in_circle=*/false};
  }
  // Twice: statuses are not of one moment, and a circle that is real stays.
  if (std::exchange(late.in_circle, verdict->deadlock) && verdict->deadlock) {
    return EndDeadlock(rank, verdict->text);
  }
  if (verdict->deadlock || operation.seconds < late.next_tell_seconds) return;
  // The members' times double alike, so that they find the same key.
  std::string text = verdict->text;
  const std::string key =
      absl::StrCat("hang/told/", ShortKey(operation.group), "/", number, "/", late.next_tell_seconds);
  const bool is_first = IsFirst(key, &text);
  while (late.next_tell_seconds <= operation.seconds) late.next_tell_seconds *= 2;
  if (is_first) options_.tell(absl::StrCat("weft: waiting: ", text));
}

}  // namespace weft
