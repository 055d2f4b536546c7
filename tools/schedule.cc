// Prints, checks, times and draws a pipeline schedule. No model runs.
//
//   bazel run //tools:schedule -- --name=zbv --ranks=8 --microbatches=16 --times=1,1,1 --draw=zbv.svg --check
//   bazel run //tools:schedule -- --file=mine.csv --log_format=json

#include <fstream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "parallel/pipeline/generator.h"
#include "runtime/base/error.h"
#include "runtime/base/flag_values.h"
#include "runtime/base/flags.h"
#include "tools/schedule_report.h"
#include "tools/schedule_svg.h"

ABSL_FLAG(std::string, name, "1f1b", "of the schedule; the names are listed above");
ABSL_FLAG(int, ranks, 4, "of the pipeline");
ABSL_FLAG(int, chunks, 0, "stages per rank, where the schedule leaves the choice; 0: its own number");
ABSL_FLAG(int, microbatches, 8, "of a step");
ABSL_FLAG(std::string, file, "", "a schedule as PyTorch's CSV, instead of one by name: one row per rank");
ABSL_FLAG(std::string, times, "1,1,1",
          "F,I,W: what forward, the gradient of the input and those of the parameters take of all layers of "
          "a rank, in any unit; a chunk takes its share");
ABSL_FLAG(std::string, pairs, "sequential",
          "how overlapped pairs are timed: sequential, one part after the other; atomic, as one action as "
          "long as both; or the time of a pair, in the units of --times");
ABSL_FLAG(
    std::string, bytes, "",
    "SAVED,KEPT: the bytes that a chunk holds of a microbatch from F to I (or B), and from I to W; with "
    "them the certificate has each rank's peak in bytes");
ABSL_FLAG(bool, check, false,
          "print the certificate behind the lists: makespan, bubble, what each rank holds");
ABSL_FLAG(std::string, draw, "", "also draw the schedule into this file, as SVG");
ABSL_FLAG(std::string, log_format, "text", "text, or json: one object");

namespace weft {
namespace {

FlagsUsage Usage() {
  std::string summary =
      "Prints, checks, times and draws a pipeline schedule; exits with 1 if it is not ok. No model "
      "runs.\n\nSchedules:\n";
  for (const ScheduleGenerator& generator : AllSchedules()) {
    absl::StrAppendFormat(&summary, "  %-15s %s\n", generator.name, generator.summary);
  }
  return {
      .summary = summary,
      .groups = {{"Which", {"name", "ranks", "chunks", "microbatches", "file"}},
                 {"Time and memory", {"times", "pairs", "bytes"}},
                 {"Output", {"check", "draw", "log_format"}}},
      .examples = {"schedule --name=zbv --ranks=8 --microbatches=16 --times=1,1,1 --draw=zbv.svg --check",
                   "schedule --name=interleaved --ranks=4 --chunks=4 --microbatches=8 --times=2,3,2 --check",
                   "schedule --file=mine.csv --log_format=json"}};
}

ScheduleReport MakeReport() {
  ScheduleTimes times = ParseScheduleTimes(absl::GetFlag(FLAGS_times));
  ParsePairTiming(absl::GetFlag(FLAGS_pairs), times);
  const BytesOfStage bytes = ParseStageBytes(absl::GetFlag(FLAGS_bytes));
  const std::string file = absl::GetFlag(FLAGS_file);
  if (file.empty()) {
    return ReportGenerated(absl::GetFlag(FLAGS_name),
                           {.ranks = absl::GetFlag(FLAGS_ranks),
                            .chunks = absl::GetFlag(FLAGS_chunks),
                            .microbatches = absl::GetFlag(FLAGS_microbatches)},
                           times, bytes);
  }
  for (const char* flag : {"name", "ranks", "chunks", "microbatches"}) {
    WEFT_REQUIRE(!IsGiven(flag), "--", flag, " and --file: the file says it");
  }
  return ReportFile(UserPath(file), times, bytes);
}

int Run() {
  const std::string format = absl::GetFlag(FLAGS_log_format);
  WEFT_REQUIRE(format == "text" || format == "json", "--log_format=", format, ": expected text or json");
  const ScheduleReport report = MakeReport();
  const std::string draw = UserPath(absl::GetFlag(FLAGS_draw));
  if (report.certificate.ok && !draw.empty()) {
    std::ofstream picture(draw);
    picture << ScheduleSvg(report);
    picture.flush();
    WEFT_REQUIRE(static_cast<bool>(picture), "--draw=", draw, ": cannot be written");
  }
  if (format == "json") {
    absl::PrintF("%s\n", report.ToJson());
    return report.certificate.ok ? 0 : 1;
  }
  absl::PrintF("%s", report.schedule.ToString());
  const bool is_made = !report.schedule.ranks.empty();  // otherwise the error names the schedule
  WEFT_REQUIRE(report.certificate.ok, is_made ? absl::StrCat("schedule ", report.name, ": ") : "",
               report.certificate.error);
  if (absl::GetFlag(FLAGS_check)) absl::PrintF("\n%s", report.CertificateText());
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
