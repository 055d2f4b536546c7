#include "runtime/launch/hang_verdict.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

bool HasIssued(const RankReport& report, const PendingOperation& operation) {
  if (!report.status.has_value()) return false;
  const auto found = report.status->num_collectives.find(operation.group);
  return found != report.status->num_collectives.end() && found->second >= operation.sequence;
}

// The rank's own part in `operation`, if that is queued; else null.
const PendingOperation* QueuedPart(const RankReport& report, const PendingOperation& operation) {
  if (!report.status.has_value()) return nullptr;
  for (const PendingOperation& own : report.status->pending) {
    const bool is_part = own.group == operation.group && own.sequence == operation.sequence && own.collective;
    if (is_part && !own.begun) return &own;
  }
  return nullptr;
}

bool HasEntered(const RankReport& report, const PendingOperation& operation) {
  return HasIssued(report, operation) && QueuedPart(report, operation) == nullptr;
}

// Whether following who waits for whom from `rank` leads to a circle. What is queued may still begin.
class CircleSearch {
 public:
  explicit CircleSearch(const std::vector<RankReport>& reports)
      : reports_(reports), states_(reports.size(), State::kNew) {}

  bool From(int rank) {
    if (states_[rank] != State::kNew) return states_[rank] == State::kOnPath;
    states_[rank] = State::kOnPath;
    const RankReport& report = reports_[rank];
    const PendingOperation* const operation =
        report.status.has_value() ? report.status->blocked_in() : nullptr;
    if (operation != nullptr && operation->collective) {
      for (int next : operation->ranks) {
        if (!HasIssued(reports_[next], *operation) && From(next)) return true;
      }
    }
    states_[rank] = State::kDone;
    return false;
  }

 private:
  enum class State { kNew, kOnPath, kDone };
  const std::vector<RankReport>& reports_;
  std::vector<State> states_;
};

// What members do that are missing in `awaited`, in the words for one or for several of them.
std::string Instead(const RankReport& report, const PendingOperation& awaited, bool several) {
  const char* const is = several ? "are" : "is";
  const char* const has = several ? "have" : "has";
  if (!report.gone.empty()) return report.gone;
  if (!report.status.has_value()) {
    return absl::StrFormat("%s not answering for %.1f s: stopped, or its host cannot be reached", is,
                           report.silent_seconds);
  }
  if (const PendingOperation* const operation = report.status->blocked_in()) {
    return absl::StrCat(is, " at ", operation->ToString());
  }
  if (const PendingOperation* const queued = QueuedPart(report, awaited)) {
    return absl::StrFormat("%s it queued behind other work (issued %.1f s ago)", has, queued->seconds);
  }
  if (report.status->last.empty()) return absl::StrCat(has, " not entered: it has used no communicator yet");
  return absl::StrFormat("%s not entered (last seen: %s, %.1f s ago)", has, report.status->last,
                         report.status->last_seconds);
}

}  // namespace

std::string RankList(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i == 1) {
      parts.push_back(absl::StrCat(ranks[i]));
    } else {
      parts.push_back(absl::StrCat(ranks[i], end - i == 2 ? ", " : "-", ranks[end - 1]));
    }
    i = end;
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(parts, ", "));
}

std::optional<HangVerdict> ExplainHang(const std::vector<RankReport>& reports, int rank) {
  if (!reports[rank].status.has_value()) return std::nullopt;
  const PendingOperation* const operation = reports[rank].status->waits_in();
  if (operation == nullptr) return std::nullopt;
  if (!operation->collective) {
    return HangVerdict{
        absl::StrCat(RankList({rank}), " is at ", operation->ToString(), ", waiting for its peers"), false};
  }
  std::vector<int> waiting;
  // Ranks that do the same are named together, in the order of the first of each.
  std::vector<std::vector<int>> alike;
  std::map<std::string, size_t> index;  // in `alike`
  for (int member : operation->ranks) {
    if (HasEntered(reports[member], *operation)) {
      waiting.push_back(member);
      // It may have entered and been stopped or killed inside.
      if (reports[member].gone.empty()) continue;
    }
    const std::string instead = Instead(reports[member], *operation, /*several=*/false);
    const auto [found, is_new] = index.try_emplace(instead, alike.size());
    if (is_new) alike.emplace_back();
    alike[found->second].push_back(member);
  }
  std::vector<std::string> sentences;
  sentences.reserve(alike.size());
  for (const std::vector<int>& ranks : alike) {
    sentences.push_back(
        absl::StrCat(RankList(ranks), " ", Instead(reports[ranks[0]], *operation, ranks.size() > 1)));
  }
  const std::string wait = absl::StrCat(RankList(waiting), waiting.size() == 1 ? " waits in " : " wait in ",
                                        operation->ToString());
  if (sentences.empty()) {
    return HangVerdict{absl::StrCat("all members have entered, but ", wait, ": is a link down?"), false};
  }
  return HangVerdict{absl::StrCat(absl::StrJoin(sentences, "; "), " while ", wait),
                     CircleSearch(reports).From(rank)};
}

}  // namespace weft
