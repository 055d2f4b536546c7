#include "examples/checkpoint_flags.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "examples/flag_checks.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/flag_values.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/snapshot_memory.h"

ABSL_FLAG(std::string, checkpoint_dir, "",
          "folder, which all machines see, for checkpoints that every rank writes; with a whole step in it "
          "the run goes on from there, on any mesh, plan and number of ranks");
ABSL_FLAG(int64_t, save_every, 250,
          "of --checkpoint_dir: steps between saves; 0: at the end and on SIGINT or SIGTERM alone");
ABSL_FLAG(int64_t, keep, 3, "of --checkpoint_dir: steps that stay, the newest; 0: all");
ABSL_FLAG(bool, save_in_background, true,
          "of --checkpoint_dir: training goes on while threads write a copy of the state");
ABSL_FLAG(bool, save_incremental, false,
          "of --checkpoint_dir: tensors that have not changed since the last save are not written again");
ABSL_FLAG(double, save_bandwidth, 0,
          "of --checkpoint_dir, with --save_in_background: MB per second that each rank writes at most while "
          "training goes on; a save that is waited for, as the last one is, goes as fast as it can; 0: any");
ABSL_FLAG(
    int64_t, snapshot_every, 0,
    "of --checkpoint_dir, under weft_run: steps between snapshots in memory that outlives the ranks, with a "
    "copy on the next node; after a failure the run goes on from the last; 0: none");
ABSL_FLAG(
    std::string, batch_policy, "keep",
    "of a run that goes on with another --batch, or whose batch follows the ranks (--batch_ranks): keep (an "
    "error), linear or sqrt (the learning rate is scaled by the ratio, or its root)");
ABSL_FLAG(int64_t, batch_ranks, 0,
          "ranks that --batch and the learning rate are meant for: N others have N/batch_ranks of it, and "
          "--batch_policy scales the learning rate; 0: --batch is that of any number of ranks");

namespace weft {
namespace {

absl::CommandLineFlag& Flag(const std::string& name) {
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  if (flag == nullptr)
    Throw(absl::StatusCode::kDataLoss, "a checkpoint with the flag --", name, ", which this program lacks");
  return *flag;
}

void SetFlag(const std::string& name, const std::string& value) {
  std::string error;
  if (!Flag(name).ParseFrom(value, &error)) {
    Throw(absl::StatusCode::kDataLoss, "checkpoint flag --", name, ": ", error);
  }
}

double NumberOf(const std::string& name, const std::string& text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value)) {
    Throw(absl::StatusCode::kDataLoss, "checkpoint flag --", name, ": '", text, "' is no number");
  }
  return value;
}

}  // namespace

FlagGroup CheckpointFlags() {
  return {"Checkpoints",
          {"checkpoint_dir", "save_every", "keep", "save_in_background", "save_incremental", "save_bandwidth",
           "snapshot_every", "batch_policy", "batch_ranks"}};
}

std::string CheckpointFolder() { return UserPath(absl::GetFlag(FLAGS_checkpoint_dir)); }

std::optional<CheckpointOptions> CheckpointOptionsFromFlags() {
  CheckpointOptions options;
  options.folder = CheckpointFolder();
  std::error_code ignored;  // what cannot be looked at is told when it is used
  WEFT_REQUIRE(!std::filesystem::exists(options.folder, ignored) ||
                   std::filesystem::is_directory(options.folder, ignored),
               "--checkpoint_dir=", options.folder, ": expected a folder, got a file");
  options.save_every = AtLeast(0, "save_every", absl::GetFlag(FLAGS_save_every));
  options.keep = static_cast<int>(std::min<int64_t>(AtLeast(0, "keep", absl::GetFlag(FLAGS_keep)), 1 << 30));
  options.background = absl::GetFlag(FLAGS_save_in_background);
  options.incremental = absl::GetFlag(FLAGS_save_incremental);
  options.bytes_per_second = InRange(0, 1e9, "save_bandwidth", absl::GetFlag(FLAGS_save_bandwidth)) * 1e6;
  WEFT_REQUIRE(options.background || options.bytes_per_second == 0,
               "--save_bandwidth=", absl::GetFlag(FLAGS_save_bandwidth),
               ": expected --save_in_background, too: a save that training waits for goes as fast as it can");
  if (const auto launched = ParseLaunchEnvironment(LauncherVariables())) {
    options.run_id = launched->run_id;
    options.generation = launched->restart_count;
  }
  options.snapshot_every = AtLeast(0, "snapshot_every", absl::GetFlag(FLAGS_snapshot_every));
  if (options.snapshot_every > 0) {
    WEFT_REQUIRE(!options.folder.empty(), "--snapshot_every=", options.snapshot_every,
                 ": expected --checkpoint_dir, too: when memory is lost, the run goes on from there");
    options.snapshot_memory = ParseSnapshotMemory(LauncherVariables());
    WEFT_REQUIRE(options.snapshot_memory.has_value(), "--snapshot_every=", options.snapshot_every,
                 ": nobody keeps memory that outlives the ranks; start the program by weft_run");
  }
  if (!options.folder.empty()) return options;
  for (const char* flag :
       {"save_every", "keep", "save_in_background", "save_incremental", "save_bandwidth"}) {
    WEFT_REQUIRE(!IsGiven(flag), "--", flag, "=", Flag(flag).CurrentValue(),
                 ": expected --checkpoint_dir, too");
  }
  return std::nullopt;
}

std::optional<SavedStep> FindSavedStep() {
  const std::string folder = CheckpointFolder();
  if (folder.empty()) return std::nullopt;
  const std::shared_ptr<Files> files = MakeDiskFiles();
  std::vector<int64_t> steps = ListSteps(*files, folder);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      return SavedStep{.step = *step, .texts = ReadManifest(*files, folder, *step).texts};
    } catch (const Error& error) {
      const bool is_broken =
          error.code() == absl::StatusCode::kDataLoss || error.code() == absl::StatusCode::kNotFound;
      if (!is_broken) throw;
    }
  }
  return std::nullopt;
}

void RequireSameFlags(int64_t step, const std::map<std::string, std::string>& loaded,
                      const std::map<std::string, std::string>& read,
                      const std::map<std::string, std::string>& now) {
  // A number may be written in several ways.
  const auto is = [](const std::map<std::string, std::string>& values, const std::string& name,
                     const std::string& value) {
    const auto found = values.find(name);
    if (found == values.end() || found->second == value) return true;
    double left = 0, right = 0;
    return absl::SimpleAtod(found->second, &left) && absl::SimpleAtod(value, &right) && left == right;
  };
  for (const auto& [name, value] : loaded) {
    if (is(read, name, value) || is(now, name, value)) continue;
    Throw(absl::StatusCode::kFailedPrecondition, "--checkpoint_dir=", CheckpointFolder(), ": step ", step,
          ", which was loaded, was made with --", name, "=", value, ", but when the run began it was --",
          name, "=", now.at(name), "; start it again, or give the flag");
  }
}

std::map<std::string, std::string> WithGiven(std::map<std::string, std::string> saved,
                                             const std::map<std::string, std::string>& now,
                                             const ParsedFlags& parsed) {
  for (auto& [name, value] : saved) {
    const auto found = now.find(name);
    if (found != now.end() && parsed.Given(name)) value = found->second;
  }
  return saved;
}

void RestoreFlags(const std::map<std::string, std::string>& saved, const ParsedFlags& parsed,
                  const std::vector<std::string>& fixed) {
  for (const auto& [name, value] : saved) {
    if (!parsed.Given(name)) {
      SetFlag(name, value);
      continue;
    }
    const bool may_change = std::count(fixed.begin(), fixed.end(), name) == 0;
    WEFT_REQUIRE(may_change || Flag(name).CurrentValue() == value, "--", name, "=", Flag(name).CurrentValue(),
                 ": the checkpoint to resume from was made with '", value, "'; leave the flag out");
  }
}

void ApplyBatchPolicy(const std::map<std::string, std::string>& saved, const ParsedFlags& parsed,
                      const std::vector<std::string>& rates) {
  const auto before = saved.find("batch");
  const std::string batch = Flag("batch").CurrentValue();
  if (before == saved.end() || before->second == batch) return;
  const std::string policy = absl::GetFlag(FLAGS_batch_policy);
  WEFT_REQUIRE(policy == "linear" || policy == "sqrt", "--batch=", batch,
               ": the checkpoint to resume from was made with '", before->second,
               "'; leave the flag out, or say --batch_policy=linear or sqrt");
  const double ratio = NumberOf("batch", batch) / NumberOf("batch", before->second);
  for (const std::string& rate : rates) {
    if (parsed.Given(rate)) continue;
    const double value = NumberOf(rate, Flag(rate).CurrentValue());
    SetFlag(rate, absl::StrFormat("%.17g", value * (policy == "linear" ? ratio : std::sqrt(ratio))));
  }
}

ScaledBatch BatchForRanks(int64_t batch, int64_t multiple, int64_t num_ranks, int64_t least) {
  const std::string policy = absl::GetFlag(FLAGS_batch_policy);
  OneOf("batch_policy", policy, {"keep", "linear", "sqrt"});
  const int64_t base = AtLeast(0, "batch_ranks", absl::GetFlag(FLAGS_batch_ranks));
  if (base == 0) return {.batch = batch};
  WEFT_REQUIRE(policy != "keep", "--batch_ranks=", base,
               ": expected 0, or --batch_policy=linear or sqrt, which says how the learning rate follows");
  if (base == num_ranks) return {.batch = batch};
  const double parts = static_cast<double>(batch) / static_cast<double>(multiple) *
                       static_cast<double>(num_ranks) / static_cast<double>(base);
  const int64_t fewest = std::max<int64_t>(1, (least + multiple - 1) / multiple);
  const int64_t scaled = multiple * std::max<int64_t>(fewest, std::llround(parts));
  const double ratio = static_cast<double>(scaled) / static_cast<double>(batch);
  return {.batch = scaled, .rate = policy == "linear" ? ratio : std::sqrt(ratio)};
}

}  // namespace weft
