#include "runtime/trace/span.h"

#include <chrono>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"

namespace weft {
namespace {

struct Record {
  int rank;
  int lane;
  std::string category;
  std::string name;
  int64_t begin_ns;
  int64_t end_ns;
};

// `text` as a JSON string, quotes included; bytes that are not UTF-8 become the replacement character.
std::string JsonString(const std::string& text) { return JsonText(nlohmann::json(text)); }

// Chrome counts microseconds; three decimals keep every nanosecond, which a double would not.
std::string Microseconds(int64_t ns) {
  const char* const sign = ns < 0 ? "-" : "";
  const uint64_t size = ns < 0 ? -static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  return absl::StrFormat("%s%d.%03d", sign, size / 1000, size % 1000);
}

}  // namespace

struct Tracer::State {
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  mutable std::mutex mutex;
  std::vector<Record> records;  // under `mutex`, as is the next
  std::map<int, std::string> lane_names;
  int64_t clock_offset_ns = 0;
};

Tracer::Tracer() : state_(std::make_unique<State>()) {}

Tracer::~Tracer() = default;

int64_t Tracer::Now() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                              state_->start)
      .count();
}

void Tracer::Add(int rank, absl::string_view category, absl::string_view name, int64_t begin_ns,
                 int64_t end_ns, int lane) noexcept {
  try {
    Record record{rank, lane, std::string(category), std::string(name), begin_ns, end_ns};
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->records.push_back(std::move(record));
  } catch (const std::bad_alloc&) {
    // Spans end in destructors: a trace with a hole is better than the end of the program.
  }
}

void Tracer::NameLane(int lane, absl::string_view name) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->lane_names[lane] = std::string(name);
}

void Tracer::SetClockOffset(int64_t ns) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->clock_offset_ns = ns;
}

std::string Tracer::ToChromeJson() const {
  int64_t offset_ns = 0;
  std::vector<Record> records;
  std::map<int, std::string> names;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    records = state_->records;
    names = state_->lane_names;
    offset_ns = state_->clock_offset_ns;
  }
  std::string json = "[";
  const auto append = [&](const auto&... parts) {
    absl::StrAppend(&json, json.size() == 1 ? "\n" : ",\n", parts...);
  };
  if (offset_ns != 0) {
    append(R"({"ph":"M","pid":)", records.empty() ? 0 : records[0].rank,
           R"(,"name":"clock_offset","args":{"us":)", Microseconds(offset_ns), "}}");
  }
  std::set<int> ranks;
  std::set<std::pair<int, int>> lanes;
  for (const Record& record : records) {
    if (ranks.insert(record.rank).second) {
      append(R"({"ph":"M","pid":)", record.rank, R"(,"name":"process_name","args":{"name":"rank )",
             record.rank, R"("}})");
    }
    if (!lanes.insert({record.rank, record.lane}).second) continue;
    const auto named = names.find(record.lane);
    const std::string name = named == names.end() ? absl::StrCat("lane ", record.lane) : named->second;
    append(R"({"ph":"M","pid":)", record.rank, R"(,"tid":)", record.lane,
           R"(,"name":"thread_name","args":{"name":)", JsonString(name), "}}");
  }
  for (const Record& record : records) {
    append(R"({"ph":"X","pid":)", record.rank, R"(,"tid":)", record.lane, R"(,"cat":)",
           JsonString(record.category), R"(,"name":)", JsonString(record.name), R"(,"ts":)",
           Microseconds(record.begin_ns), R"(,"dur":)", Microseconds(record.end_ns - record.begin_ns), "}");
  }
  absl::StrAppend(&json, "\n]\n");
  return json;
}

void Tracer::WriteChromeTrace(const std::string& path) const {
  std::ofstream file(path, std::ios::binary);
  file << ToChromeJson();
  file.close();
  WEFT_REQUIRE(!file.fail(), "cannot write the trace to '", path, "'");
}

}  // namespace weft
