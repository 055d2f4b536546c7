#include "dtensor/checkpoint/folder/step_folder.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/checkpoint/folder/piece_file.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr int64_t kPart = 8 << 20;
constexpr char kBroken[] = ".broken";

// Looks at the files of a step, and those that it refers to, and writes down what is wrong.
class StepChecker {
 public:
  StepChecker(Files& files, const std::string& folder, int64_t step)
      : files_(files), folder_(folder), step_(step) {}

  StepVerdict Check(bool with_elements) {
    Try([&] {
      const Manifest manifest = ReadManifest(files_, folder_, step_);
      std::map<std::string, PieceTable> tables;
      for (const auto& [name, file] : manifest.files) {
        Try([&, &name = name, &file = file] { tables[name] = CheckFile(name, file); });
      }
      if (!verdict_.problems.empty()) return;
      CheckBoxes(manifest, tables);
      verdict_.has_own_files = verdict_.problems.empty();
      for (const auto& [name, table] : tables) {
        for (const auto& [tensor, record] : table) {
          const bool is_read = Try([&, &name = name, &tensor = tensor, &record = record] {
            CheckPiece(manifest, name, tensor, record, with_elements);
          });
          verdict_.has_own_files &= is_read || record.at.has_value();
        }
      }
    });
    return std::move(verdict_);
  }

 private:
  // Whether nothing was wrong.
  template <class Function>
  bool Try(const Function& function) {
    try {
      function();
      return true;
    } catch (const Error& error) {
      const bool is_broken =
          error.code() == absl::StatusCode::kDataLoss || error.code() == absl::StatusCode::kNotFound;
      if (!is_broken) throw;
      verdict_.problems.push_back(error.message());
      return false;
    }
  }

  std::string PathOf(int64_t step, const std::string& file) const {
    return JoinPath(JoinPath(folder_, StepName(step)), file);
  }

  PieceTable CheckFile(const std::string& name, const ManifestFile& expected) {
    const std::unique_ptr<FileReader> file = files_.Open(PathOf(step_, name));
    if (file->num_bytes() != expected.num_bytes) {
      Throw(absl::StatusCode::kDataLoss, "'", file->path(), "' has ", file->num_bytes(),
            " bytes, the manifest says ", expected.num_bytes);
    }
    uint32_t crc = 0;
    PieceTable table;
    try {
      table = ReadPieceTable(*file, &crc);
    } catch (const Error& error) {
      // A dtype, say, that this Weft does not know: broken, if the header is not as it was written.
      if (crc == expected.header_crc32c || error.code() != absl::StatusCode::kUnimplemented) throw;
    }
    if (crc != expected.header_crc32c) {
      Throw(absl::StatusCode::kDataLoss, "'", file->path(), "': its header has the checksum ", CrcText(crc),
            ", the manifest says ", CrcText(expected.header_crc32c));
    }
    return table;
  }

  // Every box that has an owner is in the owner's file, and nothing else. A tensor has one box per owner at most, so of one that
  // has more than there are files the first too many is lacking, and the rest need not be looked at.
  void CheckBoxes(const Manifest& manifest, const std::map<std::string, PieceTable>& tables) {
    size_t num_boxes = 0, num_pieces = 0;
    for (const auto& [tensor, place] : manifest.tensors) {
      for (const OwnedBox& owned : OwnedBoxes(place, std::ssize(tables) + 1)) {
        ++num_boxes;
        const auto table = tables.find(RankFileName(owned.rank));
        const auto piece = table == tables.end() ? PieceTable::const_iterator() : table->second.find(tensor);
        if (table == tables.end() || piece == table->second.end() || piece->second.box != owned.box ||
            piece->second.dtype != place.type.dtype) {
          verdict_.problems.push_back(absl::StrCat("'", PathOf(step_, RankFileName(owned.rank)),
                                                   "' lacks the box of tensor '", tensor,
                                                   "' that the manifest says it has"));
        }
      }
    }
    for (const auto& [name, table] : tables) num_pieces += table.size();
    if (num_pieces > num_boxes) {
      verdict_.problems.push_back(absl::StrCat("the files of '", PathOf(step_, ""), "' have ", num_pieces,
                                               " boxes, the manifest says ", num_boxes));
    }
  }

  void CheckPiece(const Manifest& manifest, const std::string& name, const std::string& tensor,
                  const PieceRecord& record, bool with_elements) {
    if (!record.at && !with_elements) return;
    const std::string path = record.at ? PathOf(record.at->step, record.at->file) : PathOf(step_, name);
    if (record.at && !std::count(manifest.refers_to.begin(), manifest.refers_to.end(), record.at->step)) {
      Throw(absl::StatusCode::kDataLoss, "'", PathOf(step_, name), "' refers to step ", record.at->step,
            " for tensor '", tensor, "'; the manifest does not say so");
    }
    if (open_ == nullptr || open_->path() != path) open_ = files_.Open(path);
    const int64_t offset = record.at ? record.at->offset : record.offset;
    if (offset > open_->num_bytes() || record.num_bytes() > open_->num_bytes() - offset) {
      Throw(absl::StatusCode::kDataLoss, "'", path, "' ends before tensor '", tensor, "', which step ", step_,
            " has there");
    }
    if (!with_elements) return;
    uint32_t crc = 0;
    for (int64_t done = 0; done < record.num_bytes(); done += kPart) {
      buffer_.resize(static_cast<size_t>(std::min(kPart, record.num_bytes() - done)));
      ReadAll(*open_, offset + done, buffer_.data(), std::ssize(buffer_));
      crc = Crc32c(buffer_.data(), std::ssize(buffer_), crc);
    }
    verdict_.num_bytes += record.num_bytes();
    if (crc != record.crc32c) {
      Throw(absl::StatusCode::kDataLoss, "'", path, "': the elements of tensor '", tensor,
            "' have the checksum ", CrcText(crc), ", ", CrcText(record.crc32c), " was expected");
    }
  }

  Files& files_;
  const std::string folder_;
  const int64_t step_;
  StepVerdict verdict_;
  std::unique_ptr<FileReader> open_;
  std::vector<char> buffer_;
};

}  // namespace

std::string StepName(int64_t step) { return absl::StrFormat("step-%09d", step); }

std::string TemporaryStepName(int64_t step, int64_t generation, absl::string_view life) {
  return absl::StrCat(StepName(step), ".", generation, life.empty() ? "" : "-", life, ".tmp");
}

std::optional<int64_t> ParseStepName(absl::string_view name) {
  int64_t step = 0;
  if (!absl::StartsWith(name, "step-") || !absl::SimpleAtoi(name.substr(5), &step)) return std::nullopt;
  return step >= 0 && StepName(step) == name ? std::optional<int64_t>(step) : std::nullopt;
}

bool IsTemporaryStepName(absl::string_view name) {
  return absl::StartsWith(name, "step-") && absl::EndsWith(name, ".tmp");
}

bool IsBrokenStepName(absl::string_view name) {
  const size_t dot = name.find('.');
  return dot != absl::string_view::npos && ParseStepName(name.substr(0, dot)) &&
         absl::StartsWith(name.substr(dot), kBroken);
}

std::vector<int64_t> ListSteps(Files& files, const std::string& folder) {
  std::vector<int64_t> steps;
  try {
    for (const std::string& name : files.List(folder)) {
      if (const std::optional<int64_t> step = ParseStepName(name)) steps.push_back(*step);
    }
  } catch (const Error& error) {
    if (error.code() != absl::StatusCode::kNotFound) throw;
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Manifest ReadManifest(Files& files, const std::string& folder, int64_t step) {
  const std::string path = JoinPath(JoinPath(folder, StepName(step)), kManifestName);
  Manifest manifest = ParseManifest(path, ReadText(files, path, kMaxManifestBytes));
  if (manifest.step != step) {
    Throw(absl::StatusCode::kDataLoss, "'", path, "' is of step ", manifest.step);
  }
  return manifest;
}

StepVerdict InspectStep(Files& files, const std::string& folder, int64_t step) {
  return StepChecker(files, folder, step).Check(/*with_elements=*/false);
}

StepVerdict VerifyStep(Files& files, const std::string& folder, int64_t step) {
  return StepChecker(files, folder, step).Check(/*with_elements=*/true);
}

FoundStep FindLatestStep(Files& files, const std::string& folder) {
  FoundStep found;
  std::vector<int64_t> steps = ListSteps(files, folder);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::vector<std::string> problems = InspectStep(files, folder, *step).problems;
    if (problems.empty()) {
      found.step = *step;
      return found;
    }
    found.skipped.insert(found.skipped.end(), problems.begin(), problems.end());
  }
  return found;
}

FoundStep FindStepToGoOnFrom(Files& files, const std::string& folder) {
  FoundStep found = FindLatestStep(files, folder);
  if (found.step) return found;
  std::vector<std::string> problems = found.skipped;
  try {
    for (const std::string& name : files.List(folder)) {
      if (IsBrokenStepName(name)) problems.push_back(absl::StrCat("'", JoinPath(folder, name), "'"));
    }
  } catch (const Error& error) {
    if (error.code() != absl::StatusCode::kNotFound) throw;
  }
  if (!problems.empty()) {
    Throw(absl::StatusCode::kDataLoss, "'", folder,
          "' has no step that is whole: ", absl::StrJoin(problems, "; "),
          "; to begin anew, remove them, or name another folder");
  }
  return found;
}

std::string SetStepAside(Files& files, const std::string& folder, int64_t step) {
  const std::vector<std::string> names = files.List(folder);
  std::string name = absl::StrCat(StepName(step), kBroken);
  for (int number = 2; std::count(names.begin(), names.end(), name) > 0; ++number) {
    name = absl::StrCat(StepName(step), kBroken, "-", number);
  }
  const std::string path = JoinPath(folder, name);
  files.Rename(JoinPath(folder, StepName(step)), path);
  files.SyncFolder(folder);
  return path;
}

}  // namespace weft
