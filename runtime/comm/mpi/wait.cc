#include "runtime/comm/mpi/wait.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// How long a peer that polls at all may take to answer.
constexpr std::chrono::milliseconds kAnswering{200};

}  // namespace

MpiWait::MpiWait(MpiGroup& group, std::chrono::milliseconds timeout)
    : group_(group), timeout_(timeout), begin_(Clock::now()), backoff_(group.first_wait()) {}

void MpiWait::Turn(const MpiAwaited& awaited) {
  const Clock::time_point now = Clock::now();
  if (group_.failed() || now - begin_ >= timeout_ || group_.num_absent() > 0) {
    ThrowOrGoOn(awaited, now);
  }
  backoff_.Pause(begin_, now);
  group_.transport().Poll();
}

void MpiWait::ThrowOrGoOn(const MpiAwaited& awaited, Clock::time_point now) {
  // In this order: what the absent have sent is received by now, so after this nothing of theirs is missing
  // by mistake.
  const std::vector<int> absent = group_.Absent();
  const std::vector<int> missing = awaited.missing();
  if (!awaited.moving && missing.empty()) return;  // all came just now
  const auto gone = std::find_first_of(missing.begin(), missing.end(), absent.begin(), absent.end());
  const bool hopeless = !awaited.moving && gone != missing.end();
  if (group_.failed()) {
    if (!end_.has_value()) end_ = now + awaited.patience;
    if ((hopeless && awaited.patience <= kMpiEntering) || now >= *end_) group_.Throw();
    return;
  }
  const int me = group_.ranks()[group_.member()];
  if (hopeless) {
    group_.Fail(absl::StatusCode::kAborted,
                absl::StrCat(awaited.what(), ": world rank ", me, " waits for ", group_.WorldRanks({*gone}),
                             ", ", group_.AbsenceOf(*gone)));
    group_.Throw();
  }
  if (now - begin_ < timeout_) return;
  group_.Fail(absl::StatusCode::kDeadlineExceeded,
              awaited.moving ? absl::StrCat(WaitedText(awaited.what(), me, timeout_), SilenceOf(awaited))
                             : TimeoutText(awaited.what(), me, timeout_, group_.ranks(), missing));
}

// All have entered, so who holds the data up is not known from what they sent.
std::string MpiWait::SilenceOf(const MpiAwaited& awaited) {
  std::vector<int> ranks;
  for (const int member : awaited.missing()) ranks.push_back(group_.ranks()[member]);
  std::vector<int> silent;
  for (const int rank : group_.transport().Silent(ranks, kAnswering)) {
    silent.push_back(static_cast<int>(std::lower_bound(group_.ranks().begin(), group_.ranks().end(), rank) -
                                      group_.ranks().begin()));
  }
  if (silent.empty()) return "all have arrived and answer, but the data do not come";
  return absl::StrCat("all have arrived, but ", group_.WorldRanks(silent),
                      " do not answer and the data do not come");
}

}  // namespace weft
