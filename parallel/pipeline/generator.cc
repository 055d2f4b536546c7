#include "parallel/pipeline/generator.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/base/named_table.h"

namespace weft {
namespace {

// Lists of more would not fit into memory; a typing error asks for them.
constexpr int kMost = 10'000;
constexpr int64_t kMostForwards = 4'000'000;

NamedTable<ScheduleGenerator>& Table() {
  static auto* const table = new NamedTable<ScheduleGenerator>("schedule");
  return *table;
}

bool Accepts(const ScheduleGenerator& generator, const ScheduleSize& size) {
  return generator.rule.empty() || generator.accepts(size);
}

// The nearest legal counts below and above the given one: "the nearest legal counts are 4 and 6", "the nearest legal count is
// 8"; or that no count is legal.
std::string LegalCountsNear(const ScheduleGenerator& generator, ScheduleSize size) {
  const int given = size.microbatches;
  const int64_t stages = int64_t{size.ranks} * size.chunks;
  const auto most = static_cast<int>(std::min<int64_t>(kMost, kMostForwards / stages));
  std::vector<int> counts;
  for (size.microbatches = given - 1; size.microbatches >= 1 && counts.empty(); --size.microbatches) {
    if (Accepts(generator, size)) counts.push_back(size.microbatches);
  }
  const size_t below = counts.size();
  for (size.microbatches = given + 1; size.microbatches <= most && counts.size() == below;
       ++size.microbatches) {
    if (Accepts(generator, size)) counts.push_back(size.microbatches);
  }
  if (counts.empty()) {
    return absl::StrCat("no count will do: with ", stages, " stages at most ", most, " are taken");
  }
  return absl::StrCat("the nearest legal ", counts.size() == 1 ? "count is " : "counts are ",
                      absl::StrJoin(counts, " and "));
}

}  // namespace

RegisterSchedule::RegisterSchedule(ScheduleGenerator generator) {
  const std::string name = generator.name;
  Table().Add(name, std::move(generator));
}

std::vector<ScheduleGenerator> AllSchedules() {
  std::vector<ScheduleGenerator> generators;
  for (const auto& [name, generator] : Table().values()) generators.push_back(generator);
  return generators;
}

PipelineSchedule GenerateSchedule(absl::string_view name, const ScheduleSize& given) {
  const ScheduleGenerator& generator = Table().Get(name);
  ScheduleSize size = given;
  WEFT_REQUIRE(size.ranks >= 1 && size.ranks <= kMost, "schedule ", name, ": expected 1 to ", kMost,
               " ranks, got ", size.ranks);
  WEFT_REQUIRE(size.microbatches >= 1 && size.microbatches <= kMost, "schedule ", name, ": expected 1 to ",
               kMost, " microbatches, got ", size.microbatches);
  if (size.chunks == 0) size.chunks = generator.chunks;
  WEFT_REQUIRE(generator.any_chunks || size.chunks == generator.chunks, "schedule ", name, " has ",
               generator.chunks, generator.chunks == 1 ? " chunk" : " chunks", " per rank, got ",
               size.chunks);
  WEFT_REQUIRE(size.chunks >= 1 && size.chunks <= kMost, "schedule ", name, ": expected 1 to ", kMost,
               " chunks per rank, got ", size.chunks);
  const int64_t forwards = int64_t{size.ranks} * size.chunks * size.microbatches;
  WEFT_REQUIRE(forwards <= kMostForwards, "schedule ", name, ": expected at most ", kMostForwards,
               " stages times microbatches, got ", forwards);
  WEFT_REQUIRE(Accepts(generator, size), "schedule ", name, " with ", size.ranks, " ranks: expected ",
               generator.rule, ", got ", size.microbatches, "; ", LegalCountsNear(generator, size));
  PipelineSchedule schedule = generator.generate(size);
  schedule.name = std::string(name);
  schedule.num_microbatches = size.microbatches;
  return schedule;
}

}  // namespace weft
