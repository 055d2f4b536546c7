#include "tools/schedule_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "parallel/pipeline/schedule_csv.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"

namespace weft {
namespace {

// Whatever `make` throws is a schedule that is not ok.
ScheduleReport Report(absl::string_view name, const ScheduleTimes& times, const BytesOfStage& bytes,
                      const std::function<PipelineSchedule()>& make) {
  ScheduleReport report{.name = std::string(name),
                        .size = std::nullopt,
                        .schedule = {},
                        .times = times,
                        .certificate = {},
                        .has_bytes = bytes != nullptr};
  try {
    report.schedule = make();
    report.certificate = CheckSchedule(report.schedule, times, bytes);
  } catch (const Error& error) {
    report.certificate.error = error.message();
    return report;
  }
  report.size = ScheduleSize{.ranks = report.schedule.num_ranks(),
                             .chunks = report.schedule.num_chunks(),
                             .microbatches = report.schedule.num_microbatches};
  return report;
}

bool ParseTime(absl::string_view text, double& time) {
  return absl::SimpleAtod(text, &time) && std::isfinite(time) && time >= 0;
}

double Busy(const std::vector<TimedAction>& actions) {
  double busy = 0;
  double end = 0;
  for (const TimedAction& timed : actions) {
    busy += timed.end - std::max(timed.start, end);
    end = std::max(end, timed.end);
  }
  return busy;
}

}  // namespace

std::string ScheduleReport::ToJson() const {
  nlohmann::ordered_json json;
  json["name"] = name;
  for (const char* field : {"ranks", "chunks", "microbatches"}) json[field] = nullptr;
  if (size) {
    json["ranks"] = size->ranks;
    json["chunks"] = size->chunks;
    json["microbatches"] = size->microbatches;
  }
  json["ok"] = certificate.ok;
  json["makespan"] = nullptr;
  json["bubble"] = nullptr;
  if (certificate.ok) {
    json["makespan"] = certificate.timeline.makespan;
    json["bubble"] = certificate.timeline.bubble;
  }
  json["peak_w"] = certificate.holdings.peak_w;
  json["peak_i"] = certificate.holdings.peak_i;
  if (has_bytes) json["peak_bytes"] = certificate.bytes.peak;
  json["error"] = certificate.error;
  // A path may hold bytes that are no UTF-8.
  return JsonText(json);
}

std::string ScheduleReport::CertificateText() const {
  const ScheduleTimeline& timeline = certificate.timeline;
  std::string text = absl::StrFormat(
      "ok: %d ranks, %d %s per rank, %d microbatches\nmakespan %g, bubble %g (%.1f%%) of F, I, W = %g, %g, "
      "%g\n",
      size->ranks, size->chunks, size->chunks == 1 ? "chunk" : "chunks", size->microbatches,
      timeline.makespan, timeline.bubble,
      timeline.makespan > 0 ? 100 * timeline.bubble / timeline.makespan : 0, times.forward,
      times.input_gradient, times.weight_gradient);
  absl::StrAppend(&text, "rank     busy  first  last  peak_w  peak_i  versions",
                  has_bytes ? "    peak_bytes" : "", "\n");
  for (int rank = 0; rank < size->ranks; ++rank) {
    const std::vector<TimedAction>& actions = timeline.ranks[rank];
    absl::StrAppendFormat(&text, "%4d  %7g  %5g %5g  %6d  %6d  %8d", rank, Busy(actions),
                          actions.empty() ? 0 : actions.front().start,
                          actions.empty() ? 0 : actions.back().end, certificate.holdings.peak_w[rank],
                          certificate.holdings.peak_i[rank], certificate.holdings.versions[rank]);
    if (has_bytes) absl::StrAppendFormat(&text, "  %12d", certificate.bytes.peak[rank]);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

ScheduleReport ReportGenerated(absl::string_view name, const ScheduleSize& size, const ScheduleTimes& times,
                               const BytesOfStage& bytes) {
  ScheduleReport report = Report(name, times, bytes, [&] { return GenerateSchedule(name, size); });
  if (report.schedule.ranks.empty()) report.size = size;
  return report;
}

ScheduleReport ReportFile(const std::string& path, const ScheduleTimes& times, const BytesOfStage& bytes) {
  return Report(path, times, bytes, [&] { return ReadScheduleCsv(path); });
}

ScheduleTimes ParseScheduleTimes(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ',');
  ScheduleTimes times;
  WEFT_REQUIRE(words.size() == 3 && ParseTime(words[0], times.forward) &&
                   ParseTime(words[1], times.input_gradient) && ParseTime(words[2], times.weight_gradient),
               "--times=", text, ": expected F,I,W, three times of 0 or more, such as 2,2,1");
  return times;
}

BytesOfStage ParseStageBytes(absl::string_view text) {
  if (text.empty()) return nullptr;
  constexpr int64_t kMost = int64_t{1} << 40;
  const std::vector<absl::string_view> words = absl::StrSplit(text, ',');
  const auto parse = [](absl::string_view word, int64_t& number) {
    return absl::SimpleAtoi(word, &number) && number >= 0 && number <= kMost;
  };
  StageBytes bytes;
  WEFT_REQUIRE(words.size() == 2 && parse(words[0], bytes.saved) && parse(words[1], bytes.kept),
               "--bytes=", text,
               ": expected SAVED,KEPT, two whole numbers of bytes from 0 to 2^40, such as 4096,1024");
  return [bytes](int, int) { return bytes; };
}

void ParsePairTiming(absl::string_view text, ScheduleTimes& times) {
  if (text == "sequential") {
    times.pairs = PairTiming::kSequential;
  } else if (text == "atomic") {
    times.pairs = PairTiming::kAtomic;
  } else {
    WEFT_REQUIRE(ParseTime(text, times.pair), "--pairs=", text,
                 ": expected sequential, atomic or a time of 0 or more");
    times.pairs = PairTiming::kGiven;
  }
}

}  // namespace weft
