#include "tests/parallel/pipeline/golden_schedules.h"

#include <algorithm>
#include <fstream>
#include <map>

#include "nlohmann/json.hpp"
#include "parallel/pipeline/schedule_csv.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

const char kFolder[] = "tests/golden/pipeline/";

}  // namespace

std::vector<GoldenSchedule> GoldenSchedules() {
  const std::map<std::string, std::string> names = {
      {"GPipe", "gpipe"},
      {"1F1B", "1f1b"},
      {"LoopedBFS", "looped_bfs"},
      {"Interleaved1F1B", "interleaved"},
      {"InterleavedZeroBubble", "interleaved_zb"},
      {"ZBVZeroBubble", "zbv"},
      {"DualPipeV", "dualpipev"},
  };
  std::ifstream file(std::string(kFolder) + "index.json");
  WEFT_REQUIRE(static_cast<bool>(file), kFolder, "index.json cannot be read");
  const nlohmann::json index = nlohmann::json::parse(file);
  std::vector<GoldenSchedule> schedules;
  for (const nlohmann::json& entry : index["cases"]) {
    schedules.push_back(
        {.file = entry["file"],
         .name = names.at(entry["name"]),
         .size = {.ranks = entry["ranks"], .chunks = entry["chunks"], .microbatches = entry["microbatches"]},
         .legal = entry["legal"],
         .has_lowered = entry["lowered"],
         .has_waits = entry["waits"]});
  }
  return schedules;
}

PipelineSchedule ReadGolden(const GoldenSchedule& golden, const std::string& form) {
  return ReadScheduleCsv(kFolder + golden.file + form + ".csv");
}

PipelineSchedule Without(PipelineSchedule schedule, const std::vector<ActionKind>& kinds) {
  for (std::vector<ScheduleItem>& items : schedule.ranks) {
    const auto goes = [&](const ScheduleItem& item) {
      return std::find(kinds.begin(), kinds.end(), item.actions[0].kind) != kinds.end();
    };
    items.erase(std::remove_if(items.begin(), items.end(), goes), items.end());
  }
  return schedule;
}

}  // namespace weft
