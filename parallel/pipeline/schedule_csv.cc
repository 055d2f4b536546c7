#include "parallel/pipeline/schedule_csv.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/base/error.h"
#include "runtime/base/whole_file.h"

namespace weft {
namespace {

// No model has as many; a typing error has.
constexpr int kMostNumbers = 100'000;

void ReadCell(absl::string_view cell, const std::string& where, std::vector<ScheduleItem>& items) {
  cell = absl::StripAsciiWhitespace(cell);
  if (cell.empty()) return;
  const std::optional<ScheduleItem> item = ScheduleItem::Parse(cell);
  WEFT_REQUIRE(item.has_value(), where, "cannot read \"", cell,
               "\": expected [stage][kind][microbatch] such as 2F0, 3SEND_B1 or (0F3;3B1)OVERLAP_F_B, or "
               "[stage][kind] such as 0UNSHARD");
  for (const PipelineAction& action : item->actions) {
    WEFT_REQUIRE(action.stage < kMostNumbers && action.microbatch < kMostNumbers, where, "\"", cell,
                 "\": expected numbers below ", kMostNumbers);
  }
  items.push_back(*item);
}

// The rank that computes most actions of each stage, the first of several.
std::vector<int> PlacementOf(const PipelineSchedule& schedule, int num_stages) {
  std::vector<std::map<int, int>> counts(num_stages);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const ScheduleItem& item : schedule.ranks[rank]) {
      for (const PipelineAction& action : item.actions) {
        if (IsCompute(action.kind)) ++counts[action.stage][rank];
      }
    }
  }
  std::vector<int> stage_rank;
  for (int stage = 0; stage < num_stages; ++stage) {
    WEFT_REQUIRE(!counts[stage].empty(), schedule.name, ": there are actions of stage ", num_stages - 1,
                 ", but no rank computes stage ", stage);
    const auto most = std::max_element(counts[stage].begin(), counts[stage].end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    stage_rank.push_back(most->first);
  }
  return stage_rank;
}

// PyTorch 2.15 numbers the forwards of 1F1B's last stage from 1 to m, its gradients from 0 to m - 1: the order function, which
// only draws, begins to count behind the warm-up that this stage has not. What PyTorch runs is right. No schedule is so: F of
// microbatch 0 is not there, and nothing else of microbatch m. Numbers those forwards from 0.
void MendLastStageOf1F1B(PipelineSchedule& schedule, int num_stages) {
  const int count = schedule.num_microbatches - 1;
  std::vector<PipelineAction*> forwards;
  int num_gradients = 0;
  for (std::vector<ScheduleItem>& items : schedule.ranks) {
    for (ScheduleItem& item : items) {
      for (PipelineAction& action : item.actions) {
        const bool is_of_last = action.stage == num_stages - 1;
        if (is_of_last && action.kind == ActionKind::kForward) {
          if (action.microbatch != std::ssize(forwards) + 1) return;
          forwards.push_back(&action);
        } else if (action.microbatch >= count) {
          return;
        } else if (is_of_last && action.kind == ActionKind::kBackward) {
          if (action.microbatch != num_gradients++) return;
        }
      }
    }
  }
  if (count < 1 || std::ssize(forwards) != count || num_gradients != count) return;
  for (PipelineAction* action : forwards) --action->microbatch;
  schedule.num_microbatches = count;
}

}  // namespace

PipelineSchedule ScheduleFromCsv(absl::string_view text, absl::string_view file) {
  PipelineSchedule schedule;
  schedule.name = std::string(file);
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  while (!lines.empty() && absl::StripAsciiWhitespace(lines.back()).empty()) lines.pop_back();
  WEFT_REQUIRE(!lines.empty(), file, ": expected one row of actions per rank, got none");
  int num_stages = 0;
  int64_t num_actions = 0;
  std::map<int, int> updates;  // by stage
  for (size_t line = 0; line < lines.size(); ++line) {
    std::vector<ScheduleItem>& items = schedule.ranks.emplace_back();
    int cell_number = 0;
    for (absl::string_view cell : absl::StrSplit(lines[line], ',')) {
      ReadCell(cell, absl::StrCat(file, ":", line + 1, ": cell ", ++cell_number, ": "), items);
    }
    for (const ScheduleItem& item : items) {
      for (const PipelineAction& action : item.actions) {
        num_stages = std::max(num_stages, action.stage + 1);
        schedule.num_microbatches = std::max(schedule.num_microbatches, action.microbatch + 1);
        if (action.kind == ActionKind::kOpt) ++updates[action.stage];
        ++num_actions;
      }
    }
  }
  MendLastStageOf1F1B(schedule, num_stages);
  WEFT_REQUIRE(int64_t{num_stages} * schedule.num_microbatches <= num_actions, file, ": ", num_actions,
               " actions cannot be ", schedule.num_microbatches, " microbatches of ", num_stages, " stages");
  WEFT_REQUIRE(num_stages > 0, file, ": expected actions, got blank cells alone");
  schedule.stage_rank = PlacementOf(schedule, num_stages);
  for (const auto& [stage, count] : updates) {
    if (count < 2 || schedule.versions != WeightVersions::kOne) continue;
    schedule.versions = WeightVersions::kNewest;
    schedule.microbatches_per_update = std::max(1, schedule.num_microbatches / count);
  }
  return schedule;
}

PipelineSchedule ReadScheduleCsv(const std::string& path) {
  return ScheduleFromCsv(ReadWholeFile(path), path);
}

std::string ScheduleToCsv(const PipelineSchedule& schedule) {
  std::string text;
  for (const std::vector<ScheduleItem>& items : schedule.ranks) {
    absl::StrAppend(
        &text,
        absl::StrJoin(items, ",",
                      [](std::string* out, const ScheduleItem& item) { out->append(item.ToString()); }),
        "\n");
  }
  return text;
}

}  // namespace weft
