// Merges the flight records that the ranks of a failed run have left into one report: per group, the
// collectives that had not ended or on which members disagree, and who had not entered.
//
//   WEFT_FLIGHT_DIR=/tmp/flight weft_run --nproc-per-node=4 PROGRAM     # a run that fails
//   bazel run //tools:flight_report -- --dir=/tmp/flight

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/base/flags.h"
#include "runtime/base/whole_file.h"
#include "runtime/launch/hangs/flight_record.h"

ABSL_FLAG(std::string, dir, "",
          "the folder with the ranks' records, flight_rank_N.json: WEFT_FLIGHT_DIR of the run");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {.summary = "Reports what the ranks of a failed run were doing, from their flight records.",
          .groups = {{"What", {"dir"}}},
          .examples = {"flight_report --dir=/tmp/flight"}};
}

int Run(const ParsedFlags& flags) {
  WEFT_REQUIRE(flags.Given("dir"), "--dir: expected the folder with the records (WEFT_FLIGHT_DIR), got none");
  const std::string dir = UserPath(absl::GetFlag(FLAGS_dir));
  std::error_code error;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("flight_rank_", 0) == 0 && entry.path().extension() == ".json")
      paths.push_back(entry.path());
  }
  WEFT_REQUIRE(!error, "--dir=", dir, ": ", error.message());
  WEFT_REQUIRE(!paths.empty(), "--dir=", dir, ": expected files flight_rank_N.json in it, found none");
  std::vector<std::string> records;
  for (const std::filesystem::path& path : paths) {
    records.push_back(ReadWholeFile(path.string()));
    try {
      RequireFlightRecord(records.back());
    } catch (const Error& problem) {
      Throw(problem.code(), path.string(), ": ", problem.message());
    }
  }
  absl::PrintF("%s", FlightReport(records));
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
