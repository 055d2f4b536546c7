#include "runtime/trace/span.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "runtime/base/error.h"

namespace weft {
namespace {

using nlohmann::json;

// The spans of a trace, without its names.
std::vector<json> SpansOf(const Tracer& tracer) {
  std::vector<json> spans;
  for (const json& event : json::parse(tracer.ToChromeJson())) {
    if (event["ph"] == "X") spans.push_back(event);
  }
  return spans;
}

TEST(Tracer, EmptyTraceIsAnEmptyArray) { EXPECT_EQ(json::parse(Tracer().ToChromeJson()), json::array()); }

TEST(Tracer, WritesCompleteEventsInMicroseconds) {
  Tracer tracer;
  tracer.Add(3, "op", "contract", 1'500, 4'000);
  tracer.Add(0, "comm", "all_gather(\"dp\")\\\n", 0, 7, /*lane=*/2);
  tracer.NameLane(2, "grad");
  EXPECT_EQ(json::parse(tracer.ToChromeJson()), json::parse(R"([
    {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "rank 3"}},
    {"ph": "M", "pid": 3, "tid": 0, "name": "thread_name", "args": {"name": "lane 0"}},
    {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "rank 0"}},
    {"ph": "M", "pid": 0, "tid": 2, "name": "thread_name", "args": {"name": "grad"}},
    {"ph": "X", "pid": 3, "tid": 0, "cat": "op", "name": "contract", "ts": 1.5, "dur": 2.5},
    {"ph": "X", "pid": 0, "tid": 2, "cat": "comm", "name": "all_gather(\"dp\")\\\n", "ts": 0.0, "dur": 0.007}
  ])"));
}

// 9 days in: a double of microseconds would still hold it, six significant digits would not.
TEST(Tracer, KeepsEveryNanosecond) {
  Tracer tracer;
  tracer.Add(0, "op", "x", 800'000'000'000'001, 800'000'000'000'003);
  EXPECT_THAT(tracer.ToChromeJson(), ::testing::HasSubstr(R"("ts":800000000000.001,"dur":0.002)"));
}

TEST(Tracer, NamesThatAreNotUtf8DoNotBreakTheFile) {
  Tracer tracer;
  tracer.Add(0, "op", "bad \xff byte", 0, 1);
  EXPECT_EQ(SpansOf(tracer)[0]["name"], "bad \xef\xbf\xbd byte");
}

TEST(Span, TimesItsLifetime) {
  Tracer tracer;
  const int64_t before = tracer.Now();
  {
    Span outer(&tracer, 1, "step", "outer");
    Span inner(&tracer, 1, "op", "inner");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const int64_t after = tracer.Now();
  const std::vector<json> events = SpansOf(tracer);
  ASSERT_EQ(events.size(), 2);
  const json& inner = events[0];  // ends first
  const json& outer = events[1];
  EXPECT_EQ(inner["name"], "inner");
  EXPECT_EQ(outer["name"], "outer");
  const auto begin = [](const json& event) { return event["ts"].get<double>(); };
  const auto end = [](const json& event) { return event["ts"].get<double>() + event["dur"].get<double>(); };
  EXPECT_GE(inner["dur"].get<double>(), 2000.0);
  EXPECT_GE(begin(outer) * 1000, before - 1);
  EXPECT_GE(begin(inner), begin(outer));
  EXPECT_LE(end(inner), end(outer) + 0.001);
  EXPECT_LE(end(outer) * 1000, after + 1);
}

TEST(Span, WithoutATracerDoesNothing) { Span span(nullptr, 0, "op", "x"); }

TEST(Tracer, TakesSpansFromAllRanks) {
  Tracer tracer;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&tracer, rank] {
      for (int i = 0; i < 500; ++i) Span span(&tracer, rank, "op", "x");
    });
  }
  for (std::thread& rank : ranks) rank.join();
  std::vector<int> counts(4, 0);
  for (const json& event : SpansOf(tracer)) ++counts[event["pid"].get<int>()];
  EXPECT_EQ(counts, std::vector<int>(4, 500));
}

TEST(Tracer, WritesTheFileOrNamesThePath) {
  Tracer tracer;
  tracer.Add(0, "op", "x", 0, 1000);
  const std::string path = ::testing::TempDir() + "/trace.json";
  tracer.WriteChromeTrace(path);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), tracer.ToChromeJson());
  try {
    tracer.WriteChromeTrace("/no/such/folder/trace.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(error.message(), ::testing::HasSubstr("'/no/such/folder/trace.json'"));
  }
}

}  // namespace
}  // namespace weft
