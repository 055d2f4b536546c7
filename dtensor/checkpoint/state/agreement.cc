#include "dtensor/checkpoint/state/agreement.h"

#include <exception>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/error.h"
#include "runtime/base/error_text.h"
#include "runtime/comm/gather_texts.h"
#include "runtime/device/allocator.h"

namespace weft {
namespace {

constexpr size_t kLongestMessage = 16 << 10;
// Reports of more ranks than this that failed are not listed.
constexpr int kMostListed = 4;
// A wait looks this often whether it has been cancelled.
constexpr std::chrono::milliseconds kSlice(200);

// What a function gives or throws, as a text: "+" and its result, or "-", the code, a blank and the message.
std::string Outcome(const std::function<std::string()>& function) {
  try {
    return absl::StrCat("+", function());
  } catch (...) {
    const Error error = AsError(std::current_exception());
    return absl::StrCat("-", ErrorText(error.code(), error.message().substr(0, kLongestMessage)));
  }
}

bool IsError(absl::string_view outcome) { return absl::StartsWith(outcome, "-"); }

Error FailureOf(absl::string_view outcome) {
  std::optional<Error> error = ErrorFromText(outcome.substr(1));
  WEFT_CHECK(error.has_value(), outcome);
  return *std::move(error);
}

// One error of all that failed: the message alone, if it is the same on every rank.
std::string Joined(const std::vector<std::string>& reports) {
  std::optional<Error> first;
  std::string message;
  int num_failed = 0;
  bool all_alike = true;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    all_alike = all_alike && reports[rank] == reports[0];
    if (!IsError(reports[rank])) continue;
    const Error failure = FailureOf(reports[rank]);
    if (!first) first = failure;
    if (++num_failed <= kMostListed) {
      absl::StrAppend(&message, num_failed > 1 ? "; " : "", "rank ", rank, ": ", failure.message());
    }
  }
  if (num_failed > kMostListed) {
    absl::StrAppend(&message, "; and ", num_failed - kMostListed, " more ranks");
  }
  if (all_alike || reports.size() == 1) message = first->message();
  return absl::StrCat("-", ErrorText(first->code(), message));
}

}  // namespace

Agreement::Agreement(World& world, std::chrono::milliseconds timeout, int num_ranks)
    : store_(world.store()),
      rank_(world.rank()),
      size_(num_ranks > 0 ? num_ranks : world.size()),
      timeout_(ClampTimeout(timeout)) {
  WEFT_REQUIRE(rank_ < size_ && size_ <= world.size(), "checkpoints of the first ", size_, " of ",
               world.size(), " ranks: rank ", rank_, " is not among them");
  WEFT_REQUIRE(timeout.count() > 0, "checkpoints: a timeout of ", timeout.count(),
               " ms; expected more than 0");
  std::vector<int> ranks(size_);
  std::iota(ranks.begin(), ranks.end(), 0);
  group_ = world.NewHostGroup("checkpoint", ranks);
  if (rank_ == 0) id_ = store_.Add("checkpoint/agreements", 1);
  const Tensor id = Tensor::FromValues<int64_t>({1}, {id_});
  group_->Broadcast(id, /*root=*/0).Wait();
  id_ = id.ToVector<int64_t>()[0];
}

Agreement::~Agreement() = default;

std::string Agreement::Key(int64_t round, const std::string& what) const {
  return absl::StrCat("checkpoint/", id_, "/", round, "/", what);
}

// The value under a key, once it is there.
std::string Agreement::Await(const std::string& key, std::chrono::steady_clock::time_point deadline) {
  while (true) {
    if (stop_.stop_requested()) Throw(absl::StatusCode::kAborted, "this rank has given the checkpoint up");
    try {
      return store_.Get(key, kSlice);
    } catch (const Error& error) {
      const bool goes_on =
          error.code() == absl::StatusCode::kDeadlineExceeded && std::chrono::steady_clock::now() < deadline;
      if (!goes_on) throw;
    }
  }
}

// The reports of all; the word of the round before is not needed any more then.
std::vector<std::string> Agreement::Collect(int64_t round) {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  std::vector<std::string> reports;
  for (int rank = 0; rank < size_; ++rank) {
    const std::string key = Key(round, absl::StrCat(rank));
    reports.push_back(Await(key, deadline));
    store_.Delete(key);
  }
  store_.Delete(Key(round - 1, "word"));
  return reports;
}

std::string Agreement::Agree(const Round& round) {
  const int64_t number = round_++;
  const std::string own = Outcome(round.part);
  std::string word;
  if (rank_ == 0) {
    store_.Set(Key(number, "0"), own);
    word = Outcome([&] {
      std::vector<std::string> reports = Collect(number);
      for (const std::string& report : reports) {
        if (IsError(report)) throw FailureOf(Joined(reports));
      }
      for (std::string& report : reports) report.erase(0, 1);
      return round.conclude != nullptr ? round.conclude(reports) : std::string();
    });
    if (IsError(word) && round.undo != nullptr) Outcome([&] { return round.undo(), std::string(); });
    store_.Set(Key(number, "word"), word);
  } else {
    store_.Set(Key(number, absl::StrCat(rank_)), own);
    // Rank 0 may have begun its own wait up to a part later, and undoes before it tells.
    word = Await(Key(number, "word"), std::chrono::steady_clock::now() + timeout_ + timeout_ / 2);
  }
  if (!IsError(word)) return word.substr(1);
  throw FailureOf(word);
}

std::vector<std::string> Agreement::AllGather(const std::string& mine) {
  return AllGatherTexts(*group_, mine, MakeCpuAllocator());
}

void Agreement::SendRecv(absl::Span<const Message> sends, absl::Span<const Message> receives) {
  group_->SendRecv(sends, receives).Wait();
}

}  // namespace weft
