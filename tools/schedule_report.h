// A pipeline schedule and what it comes to, as text and as JSON.

#ifndef WEFT_TOOLS_SCHEDULE_REPORT_H_
#define WEFT_TOOLS_SCHEDULE_REPORT_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "parallel/pipeline/checker.h"
#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/held_bytes.h"
#include "parallel/pipeline/schedule.h"

namespace weft {

struct ScheduleReport {
  std::string name;                  // of the schedule, or of its file
  std::optional<ScheduleSize> size;  // nothing: of a file that cannot be read
  PipelineSchedule schedule;         // empty if there is none: see `error` of the certificate
  ScheduleTimes times;
  ScheduleCertificate certificate;
  bool has_bytes = false;  // bytes were given

  // One object, on one line: name, ranks, chunks, microbatches, ok, makespan, bubble, peak_w, peak_i, peak_bytes
  // where bytes were given, error. Times are in the units of F, I and W of a whole rank, peaks in chunks, by
  // rank. Where it is not ok, times are null and lists are empty; a size that nobody knows is null.
  std::string ToJson() const;
  // The figures of the whole and a line per rank. It is ok.
  std::string CertificateText() const;
};

// Generates and checks a schedule. What is wrong with name, size or schedule is in the certificate.
// `bytes`: of CheckSchedule.
ScheduleReport ReportGenerated(absl::string_view name, const ScheduleSize& size, const ScheduleTimes& times,
                               const BytesOfStage& bytes = nullptr);
// Reads a file and checks it.
ScheduleReport ReportFile(const std::string& path, const ScheduleTimes& times,
                          const BytesOfStage& bytes = nullptr);

// Reads "F,I,W", the times of a whole rank.
// Errors: InvalidArgument unless they are three numbers of 0 or more.
ScheduleTimes ParseScheduleTimes(absl::string_view text);
// Reads "SAVED,KEPT": what every chunk has of a microbatch from F to I or B, and from I to W; nothing, of "".
// Errors: InvalidArgument unless they are two whole numbers from 0 to 2^40.
BytesOfStage ParseStageBytes(absl::string_view text);
// Reads "sequential", "atomic" or the time of a pair into `times`.
// Errors: InvalidArgument with the three forms.
void ParsePairTiming(absl::string_view text, ScheduleTimes& times);

}  // namespace weft

#endif  // WEFT_TOOLS_SCHEDULE_REPORT_H_
