#include "runtime/launch/hangs/hang_verdict.h"

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
    const PendingOperation* const operation = report.status.has_value() ? report.status->held_by() : nullptr;
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

// What members do that are missing in `awaited`, in the words for one or for several of them. `entered`: what they
// have not done, "entered" or "issued it".
std::string Instead(const RankReport& report, const PendingOperation& awaited, const std::string& entered,
                    bool several) {
  const char* const is = several ? "are" : "is";
  const char* const has = several ? "have" : "has";
  if (!report.gone.empty()) return report.gone;
  if (!report.status.has_value()) {
    return absl::StrFormat("%s not answering for %.1f s: stopped, or its host cannot be reached", is,
                           report.silent_seconds);
  }
  if (const PendingOperation* const operation = report.status->blocked_in()) {
    return absl::StrCat(is, operation->blocking ? " at " : " waiting for ", operation->ToString());
  }
  if (const PendingOperation* const queued = QueuedPart(report, awaited)) {
    return absl::StrFormat("%s it queued behind other work (issued %.1f s ago)", has, queued->seconds);
  }
  if (!report.status->place.empty()) {
    return absl::StrCat(has, " not ", entered, ": ", several ? "they are" : "it is", " in ",
                        report.status->place);
  }
  if (report.status->last.empty()) {
    return absl::StrCat(has, " not ", entered, ": it has used no communicator yet");
  }
  return absl::StrFormat("%s not %s (last seen: %s, %.1f s ago)", has, entered, report.status->last,
                         report.status->last_seconds);
}

// Which members are in `operation`, and where each of the others is.
struct Whereabouts {
  std::vector<int> entered;
  std::vector<std::string> missing;  // a sentence each
};

Whereabouts Locate(const std::vector<RankReport>& reports, const PendingOperation& operation,
                   const std::string& entered) {
  Whereabouts whereabouts;
  // Ranks that do the same are named together, in the order of the first of each.
  std::vector<std::vector<int>> alike;
  std::map<std::string, size_t> index;  // in `alike`
  for (int member : operation.ranks) {
    if (HasEntered(reports[member], operation)) {
      whereabouts.entered.push_back(member);
      // It may have entered and been stopped or killed inside.
      if (reports[member].gone.empty()) continue;
    }
    const std::string instead = Instead(reports[member], operation, entered, /*several=*/false);
    const auto [found, is_new] = index.try_emplace(instead, alike.size());
    if (is_new) alike.emplace_back();
    alike[found->second].push_back(member);
  }
  for (const std::vector<int>& ranks : alike) {
    whereabouts.missing.push_back(
        absl::StrCat(RankList(ranks), " ", Instead(reports[ranks[0]], operation, entered, ranks.size() > 1)));
  }
  return whereabouts;
}

// Of ranks whose own threads wait for what a worker or a device runs: "rank 2 waits for ..., issued 4.0 s ago".
std::string Awaits(const std::vector<RankReport>& reports, int rank, const PendingOperation& held) {
  const PendingOperation& awaited = *reports[rank].status->blocked_in();
  std::vector<int> waiting;
  for (int member : held.ranks) {
    const auto& status = reports[member].status;
    const PendingOperation* const other = status.has_value() ? status->blocked_in() : nullptr;
    const bool same = other != nullptr && other->awaited && other->group == awaited.group &&
                      other->sequence == awaited.sequence && other->collective == awaited.collective;
    if (same || member == rank) waiting.push_back(member);
  }
  std::string text =
      absl::StrCat(RankList(waiting), waiting.size() == 1 ? " waits for " : " wait for ", awaited.ToString(),
                   absl::StrFormat(", issued %.1f s ago", awaited.issued_seconds));
  if (&held != &awaited) absl::StrAppend(&text, ", queued behind ", held.ToString());
  return text;
}

// "rank 1, in RECV_F of stage 2, microbatch 3, waits for send_recv(...), issued 4.0 s ago": of a message.
std::string AwaitsMessage(const RankStatus& status, const PendingOperation& awaited) {
  const std::string activity = status.activity.empty() ? "" : absl::StrCat(", in ", status.activity, ",");
  return absl::StrCat(RankList({status.rank}), activity, " waits for ", awaited.ToString(),
                      absl::StrFormat(", issued %.1f s ago", awaited.issued_seconds));
}

// What the other end of a message does.
std::string OtherEnd(const RankReport& report, const PendingOperation& awaited) {
  const bool is_seen = report.gone.empty() && report.status.has_value();
  const PendingOperation* const own = is_seen ? report.status->blocked_in() : nullptr;
  if (own != nullptr && own->awaited && !own->collective) return AwaitsMessage(*report.status, *own);
  if (own == nullptr && is_seen && !report.status->activity.empty()) {
    const std::string place =
        report.status->place.empty() ? "" : absl::StrCat(" (", report.status->place, ")");
    return absl::StrCat(RankList({report.rank}), " is in ", report.status->activity, place);
  }
  return absl::StrCat(RankList({report.rank}), " ", Instead(report, awaited, "issued it", /*several=*/false));
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
  const PendingOperation* const own = reports[rank].status->blocked_in();
  if (!operation->collective && own != nullptr && own->awaited) {
    std::string text = AwaitsMessage(*reports[rank].status, *own);
    for (const int member : own->ranks) {
      if (member != rank) absl::StrAppend(&text, "; ", OtherEnd(reports[member], *own));
    }
    return HangVerdict{text, false};
  }
  if (!operation->collective) {
    return HangVerdict{
        absl::StrCat(RankList({rank}), " is at ", operation->ToString(), ", waiting for its peers"), false};
  }
  if (own != nullptr && own->awaited) {
    const std::string wait = Awaits(reports, rank, *operation);
    const Whereabouts members = Locate(reports, *operation, own == operation ? "issued it" : "issued that");
    if (members.missing.empty()) {
      return HangVerdict{absl::StrCat("all members have issued it, but ", wait, ": is a link down?"), false};
    }
    return HangVerdict{absl::StrCat(wait, "; ", absl::StrJoin(members.missing, "; ")),
                       CircleSearch(reports).From(rank)};
  }
  const Whereabouts members = Locate(reports, *operation, "entered");
  const std::string wait =
      absl::StrCat(RankList(members.entered), members.entered.size() == 1 ? " waits in " : " wait in ",
                   operation->ToString());
  if (members.missing.empty()) {
    return HangVerdict{absl::StrCat("all members have entered, but ", wait, ": is a link down?"), false};
  }
  return HangVerdict{absl::StrCat(absl::StrJoin(members.missing, "; "), " while ", wait),
                     CircleSearch(reports).From(rank)};
}

}  // namespace weft
