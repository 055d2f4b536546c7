#include "dtensor/checkpoint/state/step_writer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/folder/steps_verdict.h"
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

// A step of that number that is whole stays, and so does one in which a whole one has elements; another is set aside for people
// to look at.
void MakeRoom(Files& files, const std::string& folder, int64_t step) {
  std::vector<int64_t> steps = ListSteps(files, folder);
  if (!std::count(steps.begin(), steps.end(), step)) return;
  if (InspectStep(files, folder, step).problems.empty()) {
    Throw(absl::StatusCode::kFailedPrecondition, "'", JoinPath(folder, StepName(step)),
          "' is there already, and whole: to write this step anew, remove it");
  }
  std::erase_if(steps, [step](int64_t other) { return other <= step; });
  const std::vector<int64_t> readers =
      InspectSteps(files, folder, steps, /*with_elements=*/false).ReferredToBy(step);
  if (!readers.empty()) {
    Throw(absl::StatusCode::kFailedPrecondition, "'", JoinPath(folder, StepName(step)),
          "' is there already, and has elements of step ", absl::StrJoin(readers, ", "),
          ": to write this step anew, remove what refers to it");
  }
  SetStepAside(files, folder, step);
}

std::string TemporaryPath(const std::string& folder, const StepToWrite& step) {
  return JoinPath(folder, TemporaryStepName(step.manifest.step, step.manifest.generation, step.life));
}

// A rank that has lost its file since, or wrote it elsewhere, is found before the step has its name.
void RequireFiles(Files& files, const std::string& temporary, const Manifest& manifest) {
  for (const auto& [name, file] : manifest.files) {
    const std::string path = JoinPath(temporary, name);
    const std::optional<int64_t> size = files.SizeOf(path);
    if (size == file.num_bytes) continue;
    Throw(absl::StatusCode::kDataLoss, "'", path, "' ",
          size ? absl::StrCat("has ", *size, " bytes") : std::string("is not there"), "; its rank wrote ",
          file.num_bytes, " bytes");
  }
}

// A name that may not outlive a crash is taken back: of a save that says that it has failed there is no step.
void GiveName(Files& files, const std::string& folder, const std::string& temporary,
              const std::string& path) {
  files.Rename(temporary, path);
  try {
    files.SyncFolder(folder);
  } catch (const Error&) {
    try {
      files.Rename(path, temporary);
    } catch (const Error&) {
      // Then it stays, and is whole.
    }
    throw;
  }
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

// Returns the manifest, with all that the ranks report.
Manifest Publish(Files& files, const std::string& folder, const StepToWrite& step,
                 const std::vector<std::string>& reports) {
  Manifest manifest = step.manifest;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    TakeReport(static_cast<int>(rank), reports[rank], &manifest);
  }
  const std::vector<int64_t> there = ListSteps(files, folder);
  for (const int64_t other : manifest.refers_to) {
    if (std::count(there.begin(), there.end(), other)) continue;
    Throw(absl::StatusCode::kNotFound, "'", folder, "': step ", other,
          " is gone, which tensors that have not changed refer to; the next save writes them anew");
  }
  const std::string temporary = TemporaryPath(folder, step);
  RequireFiles(files, temporary, manifest);
  const std::string text = FormatManifest(manifest);
  WEFT_REQUIRE(std::ssize(text) <= kMaxManifestBytes, "'", folder, "': a manifest of ", text.size(),
               " bytes for step ", manifest.step, "; expected at most ", kMaxManifestBytes,
               ", which can be read");
  WriteText(files, JoinPath(temporary, kManifestName), text);
  files.SyncFolder(temporary);
  GiveName(files, folder, temporary, JoinPath(folder, StepName(manifest.step)));
  WriteHint(files, folder, manifest.step);
  return manifest;
}

// Whether a step has the files of which its manifest was read, by their sizes.
bool HasFiles(Files& files, const std::string& path, const Manifest& manifest) {
  if (!files.SizeOf(JoinPath(path, kManifestName))) return false;
  return std::all_of(manifest.files.begin(), manifest.files.end(), [&](const auto& file) {
    return files.SizeOf(JoinPath(path, file.first)) == file.second.num_bytes;
  });
}

// Steps below the newest, ascending.
struct OldSteps {
  std::vector<int64_t> whole;
  std::vector<int64_t> may_go;  // these, and those that refer to a step that is gone
};

OldSteps LookAtOldSteps(Files& files, const std::string& folder, const std::vector<int64_t>& steps,
                        int64_t newest, KnownSteps* known) {
  const auto is_gone = [&](int64_t step) { return !std::binary_search(steps.begin(), steps.end(), step); };
  const auto lacks_a_step = [&](const Manifest& manifest) {
    return std::any_of(manifest.refers_to.begin(), manifest.refers_to.end(), is_gone);
  };
  std::erase_if(*known, [&](const auto& step) { return is_gone(step.first); });
  std::set<int64_t> intact;  // of themselves
  for (const int64_t step : steps) {
    if (step >= newest) break;
    const auto found = known->find(step);
    if (found != known->end() && HasFiles(files, JoinPath(folder, StepName(step)), found->second)) {
      intact.insert(step);
      continue;
    }
    known->erase(step);
    const StepVerdict verdict = InspectStep(files, folder, step);
    if (!verdict.has_own_files) continue;
    intact.insert(step);
    Manifest manifest = ReadManifest(files, folder, step);
    // What is broken in others' files is looked at again.
    if (verdict.problems.empty() || lacks_a_step(manifest)) known->emplace(step, std::move(manifest));
  }
  const auto refers_to_intact = [&](const Manifest& manifest) {
    return std::all_of(manifest.refers_to.begin(), manifest.refers_to.end(),
                       [&](int64_t other) { return other >= newest || intact.count(other) > 0; });
  };
  OldSteps old;
  for (const int64_t step : intact) {
    const auto found = known->find(step);
    if (found == known->end()) continue;
    const bool lacks = lacks_a_step(found->second);
    const bool is_whole = !lacks && refers_to_intact(found->second);
    if (is_whole) old.whole.push_back(step);
    if (is_whole || lacks) old.may_go.push_back(step);
  }
  return old;
}

}  // namespace

WrittenPieces WriteStep(Agreement& agreement, Files& files, const std::string& folder,
                        const StepToWrite& step, KnownSteps* known) {
  const Manifest& manifest = step.manifest;
  const std::string temporary = TemporaryPath(folder, step);
  WrittenPieces written;
  agreement.Agree({
      .part =
          [&] {
            if (step.failure != nullptr) std::rethrow_exception(step.failure);
            if (agreement.rank() == 0) MakeRoom(files, folder, manifest.step);
            files.MakeFolder(temporary);
            if (step.pieces.empty()) return std::string();
            const std::string path = JoinPath(temporary, RankFileName(agreement.rank()));
            PieceFileOptions options = step.options;
            options.stop = agreement.cancelled();
            written = WritePieces(files, path, step.pieces, options);
            return Report(written);
          },
      .conclude =
          [&](const std::vector<std::string>& reports) {
            const Manifest published = Publish(files, folder, step, reports);
            try {
              DropSteps(files, folder, step.keep, published, known);
            } catch (const Error&) {
              // Old steps that stay cost space; the next save tries again.
            }
            return std::string();
          },
      .undo = [&] { RemoveFolder(files, temporary); },
  });
  return written;
}

void RemoveLeftovers(Files& files, const std::string& folder,
                     const std::function<void(const std::string& line)>& warn) {
  const std::string hint = absl::StrCat(kLatestName, ".tmp");
  for (const std::string& name : files.List(folder)) {
    const std::string path = JoinPath(folder, name);
    try {
      if (IsTemporaryStepName(name)) RemoveFolder(files, path);
      if (absl::StartsWith(name, kNoncePrefix) || name == hint) files.Remove(path);
    } catch (const Error& error) {
      if (error.code() != absl::StatusCode::kNotFound) {
        warn(absl::StrCat("left by a run that died: ", error.message()));
      }
    }
  }
}

void DropSteps(Files& files, const std::string& folder, int keep, const Manifest& newest, KnownSteps* known) {
  if (keep <= 0) return;
  const std::vector<int64_t> steps = ListSteps(files, folder);
  known->insert_or_assign(newest.step, newest);
  OldSteps old = LookAtOldSteps(files, folder, steps, newest.step, known);
  const size_t stay = std::min(old.whole.size(), static_cast<size_t>(keep) - 1);
  std::set<int64_t> kept(old.whole.end() - static_cast<int64_t>(stay), old.whole.end());
  std::vector<const Manifest*> readers = {&newest};
  for (const int64_t step : kept) readers.push_back(&known->at(step));
  for (const Manifest* reader : readers) kept.insert(reader->refers_to.begin(), reader->refers_to.end());
  for (auto step = std::upper_bound(steps.begin(), steps.end(), newest.step); step != steps.end(); ++step) {
    try {
      const Manifest manifest = ReadManifest(files, folder, *step);
      kept.insert(manifest.refers_to.begin(), manifest.refers_to.end());
    } catch (const Error& error) {
      const bool is_broken =
          error.code() == absl::StatusCode::kDataLoss || error.code() == absl::StatusCode::kNotFound;
      if (!is_broken) throw;
    }
  }
  // The highest first: wherever this ends, what is left refers to nothing that is gone, but for steps that were kept for
  // their own elements alone.
  std::reverse(old.may_go.begin(), old.may_go.end());
  for (const int64_t step : old.may_go) {
    if (kept.count(step) > 0) continue;
    // Out of sight at once: a crash in the middle leaves no half of a step under its name.
    const std::string going = JoinPath(folder, absl::StrCat(StepName(step), ".old.tmp"));
    RemoveFolder(files, going);
    files.Rename(JoinPath(folder, StepName(step)), going);
    RemoveFolder(files, going);
  }
}

}  // namespace weft
