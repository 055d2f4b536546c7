#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weft {
namespace {

constexpr absl::string_view kOverlap = "OVERLAP_F_B";

// By ActionKind.
constexpr std::array<absl::string_view, 15> kNames = {
    "F",      "I",      "W",      "B",      "UNSHARD",     "RESHARD",     "REDUCE_GRAD",      "OPT",
    "SEND_F", "RECV_F", "SEND_B", "RECV_B", "WAIT_SEND_F", "WAIT_SEND_B", "WAIT_REDUCE_GRAD",
};

// Takes the digits that `text` begins with. Nothing if there are none, or more than an int holds.
std::optional<int> TakeNumber(absl::string_view& text) {
  size_t length = 0;
  while (length < text.size() && absl::ascii_isdigit(text[length])) ++length;
  int number = 0;
  if (!absl::SimpleAtoi(text.substr(0, length), &number)) return std::nullopt;
  text.remove_prefix(length);
  return number;
}

}  // namespace

absl::string_view ActionKindName(ActionKind kind) { return kNames[static_cast<size_t>(kind)]; }

bool IsCompute(ActionKind kind) { return kind <= ActionKind::kBackward; }

bool IsTransfer(ActionKind kind) {
  return kind >= ActionKind::kSendForward && kind <= ActionKind::kRecvBackward;
}

bool HasMicrobatch(ActionKind kind) {
  return IsCompute(kind) || IsTransfer(kind) || kind == ActionKind::kWaitSendForward ||
         kind == ActionKind::kWaitSendBackward;
}

std::string PipelineAction::ToString() const {
  return HasMicrobatch(kind) ? absl::StrCat(stage, ActionKindName(kind), microbatch)
                             : absl::StrCat(stage, ActionKindName(kind));
}

std::optional<PipelineAction> PipelineAction::Parse(absl::string_view text) {
  PipelineAction action;
  const std::optional<int> stage = TakeNumber(text);
  if (!stage) return std::nullopt;
  action.stage = *stage;
  const size_t length = std::min(text.find_first_of("0123456789"), text.size());
  const auto name = std::find(kNames.begin(), kNames.end(), text.substr(0, length));
  if (name == kNames.end()) return std::nullopt;
  action.kind = static_cast<ActionKind>(name - kNames.begin());
  text.remove_prefix(length);
  if (HasMicrobatch(action.kind)) {
    const std::optional<int> microbatch = TakeNumber(text);
    if (!microbatch) return std::nullopt;
    action.microbatch = *microbatch;
  }
  if (!text.empty()) return std::nullopt;
  return action;
}

std::string ScheduleItem::ToString() const {
  if (!overlapped()) return actions.empty() ? "" : actions[0].ToString();
  return absl::StrCat(
      "(",
      absl::StrJoin(actions, ";",
                    [](std::string* out, const PipelineAction& action) { out->append(action.ToString()); }),
      ")", kOverlap);
}

std::optional<ScheduleItem> ScheduleItem::Parse(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  ScheduleItem item;
  if (!absl::ConsumePrefix(&text, "(")) {
    const std::optional<PipelineAction> action = PipelineAction::Parse(text);
    if (!action) return std::nullopt;
    item.actions.push_back(*action);
    return item;
  }
  if (!absl::ConsumeSuffix(&text, kOverlap) || !absl::ConsumeSuffix(&text, ")")) return std::nullopt;
  for (absl::string_view part : absl::StrSplit(text, ';')) {
    const std::optional<PipelineAction> action = PipelineAction::Parse(absl::StripAsciiWhitespace(part));
    // What overlaps is computing: transfers and updates wait for nothing but what they name.
    if (!action || !IsCompute(action->kind)) return std::nullopt;
    item.actions.push_back(*action);
  }
  if (!item.overlapped()) return std::nullopt;
  return item;
}

int PipelineSchedule::num_chunks() const {
  std::vector<int> count(ranks.size(), 0);
  for (int rank : stage_rank) {
    if (rank >= 0 && rank < num_ranks()) ++count[rank];
  }
  return count.empty() ? 0 : *std::max_element(count.begin(), count.end());
}

std::vector<int> PipelineSchedule::StagesOf(int rank) const {
  std::vector<int> stages;
  for (int stage = 0; stage < num_stages(); ++stage) {
    if (stage_rank[stage] == rank) stages.push_back(stage);
  }
  return stages;
}

bool PipelineSchedule::Contains(ActionKind kind) const {
  for (const std::vector<ScheduleItem>& items : ranks) {
    for (const ScheduleItem& item : items) {
      for (const PipelineAction& action : item.actions) {
        if (action.kind == kind) return true;
      }
    }
  }
  return false;
}

bool PipelineSchedule::lowered() const {
  for (const std::vector<ScheduleItem>& items : ranks) {
    for (const ScheduleItem& item : items) {
      for (const PipelineAction& action : item.actions) {
        if (IsTransfer(action.kind)) return true;
      }
    }
  }
  return false;
}

std::string PipelineSchedule::ToString() const {
  std::string text;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    absl::StrAppend(
        &text, "rank ", rank, ": ",
        absl::StrJoin(ranks[rank], ",",
                      [](std::string* out, const ScheduleItem& item) { out->append(item.ToString()); }),
        "\n");
  }
  return text;
}

std::vector<int> LoopPlacement(int ranks, int chunks) {
  std::vector<int> stage_rank(ranks * chunks);
  for (size_t stage = 0; stage < stage_rank.size(); ++stage) stage_rank[stage] = stage % ranks;
  return stage_rank;
}

std::vector<int> VPlacement(int ranks) {
  std::vector<int> stage_rank(2 * ranks);
  for (int rank = 0; rank < ranks; ++rank) stage_rank[rank] = stage_rank[2 * ranks - 1 - rank] = rank;
  return stage_rank;
}

}  // namespace weft
