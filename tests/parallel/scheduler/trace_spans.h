#ifndef WEFT_TESTS_PARALLEL_SCHEDULER_TRACE_SPANS_H_
#define WEFT_TESTS_PARALLEL_SCHEDULER_TRACE_SPANS_H_

#include <functional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/launch/run_ranks.h"
#include "runtime/trace/span.h"

namespace weft {

// What ranks, as threads of one thread each, write to a tracer while they run `body`.
inline nlohmann::json TraceOf(int num_ranks, const std::function<void(World&)>& body) {
  Tracer tracer;
  RunRanks(num_ranks, body, {.threads_per_rank = 1, .tracer = &tracer});
  return nlohmann::json::parse(tracer.ToChromeJson());
}

// When a span was, in microseconds.
struct Interval {
  double begin = 0;
  double end = 0;
};

// The spans of a category on one lane of a rank.
inline std::vector<Interval> SpansOf(const nlohmann::json& trace, const std::string& category, int rank,
                                     int lane) {
  std::vector<Interval> spans;
  for (const nlohmann::json& event : trace) {
    if (event["ph"] != "X" || event["cat"] != category || event["pid"] != rank || event["tid"] != lane)
      continue;
    const double begin = event["ts"].get<double>();
    spans.push_back({begin, begin + event["dur"].get<double>()});
  }
  return spans;
}

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_SCHEDULER_TRACE_SPANS_H_
