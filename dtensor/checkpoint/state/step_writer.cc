#include "dtensor/checkpoint/state/step_writer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// What a rank tells of its file: "BYTES CRC STEP,STEP", or "" without one.
std::string Report(const WrittenPieces& written) {
  std::set<int64_t> steps;
  for (const auto& [name, record] : written.table) {
    if (record.at) steps.insert(record.at->step);
  }
  return absl::StrCat(written.num_bytes, " ", written.header_crc32c, " ", absl::StrJoin(steps, ","));
}

void TakeReport(int rank, const std::string& report, Manifest* manifest) {
  if (report.empty()) return;
  const std::vector<std::string> words = absl::StrSplit(report, ' ');
  ManifestFile file;
  const bool is_read = words.size() == 3 && absl::SimpleAtoi(words[0], &file.num_bytes) &&
                       absl::SimpleAtoi(words[1], &file.header_crc32c);
  WEFT_CHECK(is_read, "report of rank ", rank, ": '", report, "'");
  manifest->files[RankFileName(rank)] = file;
  for (const absl::string_view word : absl::StrSplit(words[2], ',', absl::SkipEmpty())) {
    int64_t step = 0;
    WEFT_CHECK(absl::SimpleAtoi(word, &step), word);
    if (!std::count(manifest->refers_to.begin(), manifest->refers_to.end(), step)) {
      manifest->refers_to.push_back(step);
    }
  }
  std::sort(manifest->refers_to.begin(), manifest->refers_to.end());
}

// A step of that number that is whole stays; one that is not goes.
void MakeRoom(Files& files, const std::string& folder, int64_t step) {
  const std::vector<int64_t> steps = ListSteps(files, folder);
  if (!std::count(steps.begin(), steps.end(), step)) return;
  if (CheckStep(files, folder, step).empty()) {
    Throw(absl::StatusCode::kFailedPrecondition, "'", JoinPath(folder, StepName(step)),
          "' is there already, and whole: to write this step anew, remove it");
  }
  RemoveFolder(files, JoinPath(folder, StepName(step)));
}

// Which step is the newest, for people and scripts: what is read is the steps.
void WriteHint(Files& files, const std::string& folder, int64_t step) {
  try {
    const std::string temporary = JoinPath(folder, absl::StrCat(kLatestName, ".tmp"));
    WriteText(files, temporary, absl::StrCat(StepName(step), "\n"));
    files.Rename(temporary, JoinPath(folder, kLatestName));
  } catch (const Error&) {
    // The step is there.
  }
}

void Publish(Files& files, const std::string& folder, const StepToWrite& step, Manifest manifest,
             const std::vector<std::string>& reports) {
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    TakeReport(static_cast<int>(rank), reports[rank], &manifest);
  }
  const std::vector<int64_t> there = ListSteps(files, folder);
  for (const int64_t other : manifest.refers_to) {
    if (std::count(there.begin(), there.end(), other)) continue;
    Throw(absl::StatusCode::kNotFound, "'", folder, "': step ", other,
          " is gone, which tensors that have not changed refer to; the next save writes them anew");
  }
  const std::string temporary = JoinPath(folder, TemporaryStepName(manifest.step, manifest.generation));
  WriteText(files, JoinPath(temporary, kManifestName), FormatManifest(manifest));
  files.SyncFolder(temporary);
  files.Rename(temporary, JoinPath(folder, StepName(manifest.step)));
  files.SyncFolder(folder);
  WriteHint(files, folder, manifest.step);
  try {
    DropSteps(files, folder, step.keep);
  } catch (const Error&) {
    // Old steps that stay cost space; the next save tries again.
  }
}

}  // namespace

WrittenPieces WriteStep(Agreement& agreement, Files& files, const std::string& folder,
                        const StepToWrite& step) {
  const Manifest& manifest = step.manifest;
  const std::string temporary = JoinPath(folder, TemporaryStepName(manifest.step, manifest.generation));
  WrittenPieces written;
  agreement.Agree({
      .part =
          [&] {
            if (agreement.rank() == 0) MakeRoom(files, folder, manifest.step);
            files.MakeFolder(temporary);
            if (step.pieces.empty()) return std::string();
            const std::string path = JoinPath(temporary, RankFileName(agreement.rank()));
            written = WritePieces(files, path, step.pieces, step.options);
            return Report(written);
          },
      .conclude =
          [&](const std::vector<std::string>& reports) {
            Publish(files, folder, step, manifest, reports);
            return std::string();
          },
      .undo = [&] { RemoveFolder(files, temporary); },
  });
  return written;
}

void RemoveLeftovers(Files& files, const std::string& folder) {
  for (const std::string& name : files.List(folder)) {
    if (IsTemporaryStepName(name)) RemoveFolder(files, JoinPath(folder, name));
  }
}

void DropSteps(Files& files, const std::string& folder, int keep) {
  if (keep <= 0) return;
  std::vector<std::pair<int64_t, Manifest>> whole;
  for (const int64_t step : ListSteps(files, folder)) {
    try {
      whole.push_back({step, ReadManifest(files, folder, step)});
    } catch (const Error&) {
      // A broken one is left to people to look at.
    }
  }
  std::set<int64_t> kept;
  for (size_t i = whole.size() - std::min<size_t>(whole.size(), keep); i < whole.size(); ++i) {
    kept.insert(whole[i].first);
    kept.insert(whole[i].second.refers_to.begin(), whole[i].second.refers_to.end());
  }
  for (const auto& [step, manifest] : whole) {
    if (kept.count(step) > 0) continue;
    // Out of sight at once: a crash in the middle leaves no half of a step under its name.
    const std::string going = JoinPath(folder, absl::StrCat(StepName(step), ".old.tmp"));
    RemoveFolder(files, going);
    files.Rename(JoinPath(folder, StepName(step)), going);
    RemoveFolder(files, going);
  }
}

}  // namespace weft
