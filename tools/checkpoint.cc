// Looks at checkpoint folders, checks them, and takes them to and from one file.
//
//   bazel run //tools:checkpoint -- ls runs/a
//   bazel run //tools:checkpoint -- verify runs/a
//   bazel run //tools:checkpoint -- export runs/a@100 --to=gpt.safetensors
//
// A PATH is a folder, of which the newest whole step is meant, a folder and a step, FOLDER@STEP, a safetensors file, or a
// folder that PyTorch's torch.distributed.checkpoint wrote.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/checkpoint/dcp/dcp_reader.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/folder/step_reader.h"
#include "dtensor/checkpoint/folder/steps_verdict.h"
#include "dtensor/checkpoint/safetensors.h"
#include "dtensor/checkpoint/state/exchange.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/base/flags.h"
#include "runtime/base/json_text.h"

ABSL_FLAG(std::string, to, "", "of export: the file; of import: FOLDER@STEP");
ABSL_FLAG(std::string, only, "", "of export: names of tensors begin so; \"!optimizer.\": they do not");
ABSL_FLAG(std::string, log_format, "text", "text, or json: one object per line");

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

FlagsUsage Usage() {
  return {.summary =
              "Checkpoints: checkpoint ls|verify|show|export|import|diff PATH [PATH] [flags]\n"
              "  ls FOLDER          the steps, and which are whole; of FOLDER@STEP, that one\n"
              "  verify FOLDER      reads all elements of every step; of FOLDER@STEP, of that one\n"
              "  show PATH          tensors, layouts and texts of a step\n"
              "  export PATH        one safetensors file of whole tensors: --to=FILE\n"
              "  import PATH        a step of a folder: --to=FOLDER@STEP\n"
              "  diff PATH PATH     which tensors are not the same bits\n"
              "A PATH is FOLDER (its newest whole step), FOLDER@STEP, a safetensors file, or a folder of\n"
              "PyTorch's torch.distributed.checkpoint.\n"
              "Exits with 1 for what is broken, different, or an error.",
          .groups = {{"Flags", {"to", "only", "log_format"}}},
          .examples = {"checkpoint verify runs/a --log_format=json",
                       "checkpoint export runs/a@100 --to=weights.safetensors --only='!optimizer.'",
                       "checkpoint diff runs/a runs/b"}};
}

bool IsJson() { return absl::GetFlag(FLAGS_log_format) == "json"; }
void PrintLine(const Json& json) { absl::PrintF("%s\n", JsonText(json)); }

// FOLDER@STEP, in parts.
struct StepPath {
  std::string folder;
  std::optional<int64_t> step;
};
StepPath ParsePath(const std::string& path) {
  const size_t at = path.rfind('@');
  int64_t step = 0;
  if (at != std::string::npos && absl::SimpleAtoi(path.substr(at + 1), &step) && step >= 0) {
    return {UserPath(path.substr(0, at)), step};
  }
  return {UserPath(path), std::nullopt};
}

int64_t StepOf(Files& files, const StepPath& path) {
  if (path.step) return *path.step;
  const FoundStep found = FindLatestStep(files, path.folder);
  if (!found.step) {
    Throw(absl::StatusCode::kNotFound, "'", path.folder, "' has no step that is whole",
          found.skipped.empty() ? "" : ": ", absl::StrJoin(found.skipped, "; "));
  }
  return *found.step;
}

struct Opened {
  std::unique_ptr<TensorSource> source;
  StateTexts texts;
};
Opened Open(const std::string& path) {
  const StepPath parsed = ParsePath(path);
  if (!parsed.step && std::filesystem::is_regular_file(parsed.folder)) {
    auto reader = std::make_unique<SafetensorsReader>(parsed.folder);
    for (const auto& [name, dtype] : reader->Skipped()) {
      absl::FPrintF(stderr, "'%s' has the dtype %s, which Weft lacks: it is left out\n", name, dtype);
    }
    StateTexts texts = reader->metadata();
    return {std::move(reader), texts};
  }
  const std::shared_ptr<Files> files = MakeDiskFiles();
  if (!parsed.step && files->SizeOf(JoinPath(parsed.folder, ".metadata"))) {
    auto reader = std::make_unique<DcpReader>(files, parsed.folder);
    for (const std::string& name : reader->Skipped()) {
      absl::FPrintF(stderr, "'%s' is an object of Python's, which is left out\n", name);
    }
    const StateTexts texts = reader->Values();
    return {std::move(reader), texts};
  }
  auto reader = std::make_unique<StepReader>(files, parsed.folder, StepOf(*files, parsed));
  StateTexts texts = reader->manifest().texts;
  return {std::move(reader), texts};
}

int64_t BytesOf(const Manifest& manifest) {
  int64_t total = 0;
  for (const auto& [name, file] : manifest.files) total += file.num_bytes;
  return total;
}

// Of all steps, or of FOLDER@STEP that one.
StepsVerdict Inspect(Files& files, const StepPath& path, bool with_elements) {
  std::vector<int64_t> all = ListSteps(files, path.folder);
  if (!path.step) return InspectSteps(files, path.folder, all, with_elements);
  StepsVerdict seen = InspectSteps(files, path.folder, {*path.step}, with_elements);
  // Whether it stays for elements that others have in it is said by these.
  std::erase(all, *path.step);
  seen.referred_to_by.merge(InspectSteps(files, path.folder, all, /*with_elements=*/false).referred_to_by);
  return seen;
}

int List(const std::string& path) {
  const std::shared_ptr<Files> files = MakeDiskFiles();
  const StepPath parsed = ParsePath(path);
  files->List(parsed.folder);  // that it is there
  if (!IsJson()) absl::PrintF("%-16s  %-6s  %6s  %14s  %s\n", "step", "whole", "ranks", "bytes", "refers to");
  const StepsVerdict seen = Inspect(*files, parsed, /*with_elements=*/false);
  for (const auto& [step, verdict] : seen.steps) {
    const bool is_whole = verdict.problems.empty();
    const Manifest manifest = is_whole ? seen.manifests.at(step) : Manifest();
    if (IsJson()) {
      PrintLine({{"step", step},
                 {"whole", is_whole},
                 {"ranks", is_whole ? manifest.world : 0},
                 {"bytes", BytesOf(manifest)},
                 {"refers_to", manifest.refers_to},
                 {"referred_to_by", seen.ReferredToBy(step)},
                 {"problems", verdict.problems}});
    } else if (is_whole) {
      absl::PrintF("%-16s  %-6s  %6d  %14d  %s\n", StepName(step), "yes", manifest.world, BytesOf(manifest),
                   absl::StrJoin(manifest.refers_to, ", "));
    } else if (seen.IsKeptForOthers(step)) {
      absl::PrintF("%-16s  %-6s  stays for elements of step %s\n", StepName(step), "part",
                   absl::StrJoin(seen.ReferredToBy(step), ", "));
    } else {
      absl::PrintF("%-16s  %-6s  %s\n", StepName(step), "no", verdict.problems[0]);
    }
  }
  return seen.HasBroken() ? 1 : 0;
}

int Verify(const std::string& path) {
  const std::shared_ptr<Files> files = MakeDiskFiles();
  const StepPath parsed = ParsePath(path);
  const StepsVerdict seen = Inspect(*files, parsed, /*with_elements=*/true);
  WEFT_REQUIRE(!seen.steps.empty(), "'", parsed.folder,
               "': expected a folder with steps of a checkpoint, found none");
  for (const auto& [step, verdict] : seen.steps) {
    if (IsJson()) {
      PrintLine({{"step", step},
                 {"ok", verdict.problems.empty()},
                 {"bytes", verdict.num_bytes},
                 {"referred_to_by", seen.ReferredToBy(step)},
                 {"problems", verdict.problems}});
      continue;
    }
    if (seen.IsKeptForOthers(step)) {
      absl::PrintF("%s: stays for elements of step %s, which are ok\n", StepName(step),
                   absl::StrJoin(seen.ReferredToBy(step), ", "));
      continue;
    }
    absl::PrintF("%s: %s, %d bytes of elements read\n", StepName(step),
                 verdict.problems.empty() ? "ok" : "BROKEN", verdict.num_bytes);
    for (const std::string& problem : verdict.problems) absl::PrintF("  %s\n", problem);
  }
  return seen.HasBroken() ? 1 : 0;
}

int Show(const std::string& path) {
  const Opened opened = Open(path);
  const auto* const step = dynamic_cast<const StepReader*>(opened.source.get());
  Json tensors = Json::array();
  for (const std::string& name : opened.source->Names()) {
    const TensorType& type = *opened.source->Find(name);
    Json tensor = {{"name", name}, {"type", type.ToString()}};
    if (step != nullptr) {
      const TensorPlace& place = step->manifest().tensors.at(name);
      tensor["mesh"] = place.mesh.ToString();
      tensor["layout"] = place.layout.ToString(place.mesh);
    }
    tensors.push_back(tensor);
  }
  if (IsJson()) {
    Json json = {{"path", opened.source->path()}, {"tensors", tensors}, {"texts", opened.texts}};
    if (step != nullptr) {
      json["step"] = step->manifest().step;
      json["world"] = step->manifest().world;
      json["parts"] = step->manifest().parts;
    }
    PrintLine(json);
    return 0;
  }
  absl::PrintF("%s\n", opened.source->path());
  if (step != nullptr) {
    absl::PrintF("step %d, %d ranks, parts %s, by weft %s\n", step->manifest().step, step->manifest().world,
                 absl::StrJoin(step->manifest().parts, ", "), step->manifest().weft);
  }
  for (const Json& tensor : tensors) {
    absl::PrintF("  %-40s %-20s %s %s\n", tensor["name"].get<std::string>(),
                 tensor["type"].get<std::string>(), tensor.value("layout", ""),
                 step != nullptr ? "on " + tensor.value("mesh", "") : "");
  }
  for (const auto& [name, text] : opened.texts) {
    absl::PrintF("  %s = %s\n", name, text.size() > 200 ? text.substr(0, 200) + "..." : text);
  }
  return 0;
}

int Export(const std::string& path) {
  const std::string to = UserPath(absl::GetFlag(FLAGS_to));
  WEFT_REQUIRE(!to.empty(), "export: expected --to=FILE, got none");
  const std::string only = absl::GetFlag(FLAGS_only);
  const Opened opened = Open(path);
  ExportTensors(*opened.source, opened.texts, to, [&](const std::string& name) {
    const bool negated = absl::StartsWith(only, "!");
    return absl::StartsWith(name, only.substr(negated ? 1 : 0)) != negated;
  });
  return 0;
}

int Import(const std::string& path) {
  const StepPath to = ParsePath(absl::GetFlag(FLAGS_to));
  WEFT_REQUIRE(!to.folder.empty() && to.step, "--to=", absl::GetFlag(FLAGS_to), ": expected FOLDER@STEP");
  const Opened opened = Open(path);
  ImportStep(MakeDiskFiles(), to.folder, *to.step, *opened.source, opened.texts);
  return 0;
}

int Diff(const std::string& first, const std::string& second) {
  const Opened a = Open(first), b = Open(second);
  const std::vector<TensorDifference> differences = DiffTensors(*a.source, *b.source);
  for (const TensorDifference& difference : differences) {
    if (IsJson()) {
      PrintLine({{"name", difference.name}, {"what", difference.what}, {"largest", difference.largest}});
    } else {
      absl::PrintF("%s: %s%s\n", difference.name, difference.what,
                   absl::StrContains(difference.what, "elements")
                       ? absl::StrFormat(", by %g at most", difference.largest)
                       : "");
    }
  }
  return differences.empty() ? 0 : 1;
}

// A flag that the command does nothing with is not taken for one that it follows.
void RequireFlagsOf(const std::string& command) {
  WEFT_REQUIRE(absl::GetFlag(FLAGS_to).empty() || command == "export" || command == "import", "checkpoint ",
               command, ": --to is for export and import");
  WEFT_REQUIRE(absl::GetFlag(FLAGS_only).empty() || command == "export", "checkpoint ", command,
               ": --only is for export");
}

int Run(const std::vector<std::string>& words) {
  const std::string format = absl::GetFlag(FLAGS_log_format);
  WEFT_REQUIRE(format == "text" || format == "json", "--log_format=", format, ": expected text or json");
  const std::string command = words.empty() ? "" : words[0];
  const std::vector<std::string> commands = {"ls", "verify", "show", "export", "import", "diff"};
  WEFT_REQUIRE(std::count(commands.begin(), commands.end(), command) > 0, "checkpoint '", command,
               "': expected one of ", absl::StrJoin(commands, ", "), "; see --help");
  const size_t num_paths = command == "diff" ? 2 : 1;
  WEFT_REQUIRE(words.size() == 1 + num_paths, "checkpoint ", command, ": expected ", num_paths, " path",
               num_paths > 1 ? "s" : "", ", got ", words.size() - 1);
  RequireFlagsOf(command);
  if (command == "ls") return List(words[1]);
  if (command == "verify") return Verify(words[1]);
  if (command == "show") return Show(words[1]);
  if (command == "export") return Export(words[1]);
  if (command == "import") return Import(words[1]);
  return Diff(words[1], words[2]);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  // Words, and flags: those begin with a dash and have their value behind "=".
  std::vector<std::string> words;
  std::vector<const char*> flags = {argv[0]};
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] == '-') {
      flags.push_back(argv[i]);
    } else {
      words.push_back(argv[i]);
    }
  }
  return weft::RunMain(static_cast<int>(flags.size()), flags.data(), weft::Usage(),
                       [&] { return weft::Run(words); });
}
