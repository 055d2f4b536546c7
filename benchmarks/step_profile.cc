#include "benchmarks/step_profile.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

struct TimedSpan {
  std::string name;
  double begin_us = 0;
  double end_us = 0;
};

// Rank 0's, by their beginnings, outer ones before those within.
std::vector<TimedSpan> SpansOf(const Tracer& tracer, int64_t from_ns) {
  std::vector<TimedSpan> spans;
  for (const nlohmann::json& event : nlohmann::json::parse(tracer.ToChromeJson())) {
    if (event["ph"] != "X") continue;  // names of processes and threads have no time
    const double begin = event["ts"];
    if (event["tid"] != 0 || begin < static_cast<double>(from_ns) / 1e3) continue;
    const std::string category = event["cat"];
    const std::string name = event["name"];
    spans.push_back({category == "op" ? name : absl::StrCat(category, " ", name), begin,
                     begin + static_cast<double>(event["dur"])});
  }
  std::stable_sort(spans.begin(), spans.end(), [](const TimedSpan& a, const TimedSpan& b) {
    return a.begin_us != b.begin_us ? a.begin_us < b.begin_us : a.end_us > b.end_us;
  });
  return spans;
}

}  // namespace

std::vector<ProfileLine> ProfileOf(const Tracer& tracer, int64_t from_ns) {
  std::map<std::string, ProfileLine> lines;
  std::vector<TimedSpan> open;
  for (const TimedSpan& span : SpansOf(tracer, from_ns)) {
    while (!open.empty() && open.back().end_us <= span.begin_us) open.pop_back();
    const double seconds = (span.end_us - span.begin_us) / 1e6;
    if (!open.empty()) lines[open.back().name].seconds -= seconds;
    open.push_back(span);
    ProfileLine& line = lines[span.name];
    line.name = span.name;
    line.seconds += seconds;
    ++line.num_calls;
  }
  std::vector<ProfileLine> sorted;
  for (const auto& [name, line] : lines) sorted.push_back(line);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const ProfileLine& a, const ProfileLine& b) { return a.seconds > b.seconds; });
  return sorted;
}

}  // namespace weft
