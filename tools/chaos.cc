// Hurts a training job by a seeded plan and says whether it has lost anything (docs/elastic.md):
//
//   bazel run //tools:chaos -- --kills=20 --seed=1 --kinds=rank --log_format=json

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/flag_values.h"
#include "runtime/base/flags.h"
#include "tools/faults/chaos_run.h"

ABSL_FLAG(int, kills, 20, "faults that are done to the job");
ABSL_FLAG(uint64_t, seed, 1, "of the plan: which fault, when, to which rank");
ABSL_FLAG(
    std::vector<std::string>, kinds, {"rank"},
    "of faults, a list with commas: rank (SIGKILL of a rank), stop (SIGSTOP of one), agent, guard, "
    "both (SIGKILL of weft_run's two processes), host (of a whole node: those two and its ranks), hosts "
    "(of all nodes at once), freeze (SIGSTOP of a node for longer than the suspicion time, then "
    "SIGCONT), pause (the same of its agent alone), unplug (a node's cable is pulled for as long), store "
    "(SIGKILL of the job's store, which is a process apart then), disk (full until a "
    "save has failed), flip (of a bit of the newest checkpoint, and SIGKILL of a rank), short (from a save "
    "to the next fault of another kind, writes of checkpoints write half of what they are given), clock (a "
    "jump of one rank's wall clock)");
ABSL_FLAG(int, ranks, 2, "processes of the job, on all nodes together");
ABSL_FLAG(int, nodes, 1,
          "of the job: several weft_run on this machine, which meet in a store apart; one that was killed is "
          "replaced");
ABSL_FLAG(
    absl::Duration, suspicion_time, absl::Seconds(5),
    "weft_run's: of silence, after which a node or a rank counts as lost; of the job in peace a minute");
ABSL_FLAG(int64_t, save_every, 3, "steps between checkpoints");
ABSL_FLAG(int, max_restarts, 3, "of weft_run, since the last save; 0: the job is started again from outside");
ABSL_FLAG(absl::Duration, store_away, absl::Seconds(1),
          "how long a store that was killed stays away at most: a tenth of it to all of it");
ABSL_FLAG(int, patience, 60, "seconds in which a step has to follow a fault");
ABSL_FLAG(std::string, train_flags,
          "--mesh=dp=auto --plan=fsdp --layers=6 --heads=4 --dim=256 --context=32 --batch=4 --dropout=0.1 "
          "--shuffle=epoch "
          "--eval_every=0 --sample=0",
          "of the program, separated by blanks: a GPT with 57 MB of state. --steps, --checkpoint_dir, "
          "--save_every, --save and "
          "--log_format=json come after them");
ABSL_FLAG(std::string, folder, "",
          "where checkpoints and logs go, and stay; empty: one that is removed at the end");
ABSL_FLAG(std::string, weft_run, "tools/weft_run",
          "the launcher: this tree's, or another by a path from where you stand");
ABSL_FLAG(std::string, train_gpt, "examples/train_gpt", "the program, likewise");
ABSL_FLAG(std::string, libfaketime, "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
          "the library by which clocks jump, of the package libfaketime");
ABSL_FLAG(std::string, cut_writes, "tools/faults/libcut_writes.so",
          "the library by which writes are cut short, likewise");
ABSL_FLAG(
    bool, hold_targets, false,
    "also exit with 1 if a step came later after a fault than the target of its kind (docs/elastic.md); of "
    "several faults before one step the last counts. For a machine that does nothing else");
ABSL_FLAG(std::string, log_format, "text", "text, or json: one object on stdout, and all else on stderr");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {.summary =
              "Trains a GPT twice, once in peace and once while its processes are killed, and compares what "
              "both have saved last. Exits with 1 if anything was lost, with --hold_targets also if anything "
              "took too long.",
          .groups = {{"Faults",
                      {"kills", "seed", "kinds", "store_away", "patience", "libfaketime", "cut_writes"}},
                     {"Job",
                      {"ranks", "nodes", "save_every", "suspicion_time", "max_restarts", "train_flags",
                       "weft_run", "train_gpt"}},
                     {"Output", {"folder", "hold_targets", "log_format"}}},
          .examples = {"chaos --kills=20 --seed=1 --kinds=rank --log_format=json",
                       "chaos --kills=20 --seed=1 --kinds=rank --hold_targets",
                       "chaos --kills=200 --kinds=rank,agent,guard,both --folder=/var/tmp/chaos",
                       "chaos --kills=20 --kinds=host,store,rank --nodes=2 --ranks=4",
                       "chaos --kills=20 --kinds=freeze,pause,unplug --nodes=2"}};
}

// A folder of its own, which goes at the end unless the user has named it.
class Folder {
 public:
  explicit Folder(const std::string& wanted) : path_(wanted), stays_(!wanted.empty()) {
    if (!stays_) {
      path_ = absl::StrCat(TemporaryFolder(), "/chaos-XXXXXX");
      WEFT_REQUIRE(mkdtemp(path_.data()) != nullptr, "cannot make a folder ", path_);
      return;
    }
    std::filesystem::create_directories(path_);
    WEFT_REQUIRE(std::filesystem::is_empty(path_), "--folder=", path_, ": expected an empty folder");
  }
  ~Folder() {
    std::error_code error;
    if (!stays_) std::filesystem::remove_all(path_, error);
  }
  // What the logs say is still wanted, if there is anything.
  void Keep() { stays_ = stays_ || HasContent(); }
  const std::string& path() const { return path_; }

 private:
  bool HasContent() const {
    std::error_code error;
    std::filesystem::recursive_directory_iterator entry(path_, error);
    for (; !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
      std::error_code gone;
      if (entry->is_regular_file(gone) && entry->file_size(gone) > 0) return true;
    }
    return false;
  }

  std::string path_;
  bool stays_;
};

// What a flag names: the tree's own from where chaos starts, another from where the user stands. Absolute, since under
// `bazel run` weft_run goes to the latter.
std::string ProgramOf(absl::string_view flag) {
  const std::string path = FlagNamed(flag).CurrentValue();
  return std::filesystem::absolute(IsGiven(flag) ? UserPath(path) : path).string();
}

// Errors: InvalidArgument for times that would fail, or overflow, after the job in peace.
void CheckTimes() {
  const int patience = absl::GetFlag(FLAGS_patience);
  WEFT_REQUIRE(patience >= 1, "--patience=", patience, ": expected seconds of at least 1");
  const absl::Duration away = absl::GetFlag(FLAGS_store_away);
  WEFT_REQUIRE(away >= absl::ZeroDuration() && away <= absl::Hours(24),
               "--store_away=", absl::FormatDuration(away), ": expected 0 to 24h");
}

ChaosOptions OptionsFromFlags(const std::string& folder) {
  CheckTimes();
  ChaosOptions options = {.plan = FaultPlanOptions{.count = absl::GetFlag(FLAGS_kills),
                                                   .seed = absl::GetFlag(FLAGS_seed),
                                                   .kinds = {},
                                                   .num_ranks = absl::GetFlag(FLAGS_ranks)},
                          .weft_run = ProgramOf("weft_run"),
                          .train_gpt = ProgramOf("train_gpt"),
                          .libfaketime = absl::GetFlag(FLAGS_libfaketime),
                          .cut_writes = ProgramOf("cut_writes"),
                          .train_flags = {},
                          .num_nodes = absl::GetFlag(FLAGS_nodes),
                          .save_every = absl::GetFlag(FLAGS_save_every),
                          .max_restarts = absl::GetFlag(FLAGS_max_restarts),
                          .suspicion_time = absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_suspicion_time)),
                          .store_away = absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_store_away)),
                          .patience = std::chrono::seconds(absl::GetFlag(FLAGS_patience)),
                          .folder = std::filesystem::absolute(folder).string()};
  for (const std::string& kind : absl::GetFlag(FLAGS_kinds)) options.plan.kinds.push_back(ParseFault(kind));
  for (const absl::string_view flag :
       absl::StrSplit(absl::GetFlag(FLAGS_train_flags), ' ', absl::SkipWhitespace())) {
    options.train_flags.emplace_back(flag);
  }
  for (const std::string& program : {options.weft_run, options.train_gpt}) {
    WEFT_REQUIRE(access(program.c_str(), X_OK) == 0, "there is no program '", program,
                 "': start chaos by bazel run, or say where they are (--weft_run, --train_gpt)");
  }
  return options;
}

int Run() {
  const std::string format = absl::GetFlag(FLAGS_log_format);
  WEFT_REQUIRE(format == "text" || format == "json", "--log_format=", format, ": expected text or json");
  Folder folder(UserPath(absl::GetFlag(FLAGS_folder)));
  const ChaosOptions options = OptionsFromFlags(folder.path());
  try {
    const ChaosReport report =
        RunChaos(options, [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); });
    const bool is_well = report.ok() && (report.within_target || !absl::GetFlag(FLAGS_hold_targets));
    if (!is_well) folder.Keep();
    if (format == "json") {
      std::printf("%s\n", report.ToJson().c_str());
    } else {
      std::printf(
          "%d faults, %d in saves, %d in restarts, %d more skipped; after %d of them it went on, %.2f s "
          "later "
          "(median; worst %.2f s)\n"
          "the final state is %s that of a job in peace; %d things were left behind\n",
          report.kills, report.in_save, report.in_restart, report.skipped, report.recovered, report.median_s,
          report.worst_s, report.equal ? "bit for bit" : "NOT", report.left_behind);
    }
    if (!is_well) std::fprintf(stderr, "logs and checkpoints are in %s\n", folder.path().c_str());
    return is_well ? 0 : 1;
  } catch (const Error& error) {
    if (error.code() != absl::StatusCode::kCancelled) folder.Keep();
    throw;
  }
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
