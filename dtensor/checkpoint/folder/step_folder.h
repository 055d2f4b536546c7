// The steps in a checkpoint folder: their names, and which are whole.

#ifndef WEFT_DTENSOR_CHECKPOINT_FOLDER_STEP_FOLDER_H_
#define WEFT_DTENSOR_CHECKPOINT_FOLDER_STEP_FOLDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/folder/manifest.h"

namespace weft {

inline constexpr char kManifestName[] = "manifest.json";
// A manifest is some hundred bytes per tensor; more than this is none, and is not written.
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;
inline constexpr char kLatestName[] = "latest";
inline constexpr char kLockName[] = ".lock";  // a file by which a job knows whether another one saves there
inline constexpr char kNoncePrefix[] = ".nonce-";  // of files by which ranks see that they share the folder

// "step-000000100"; while it is written, "step-000000100.2-1a2b3c4d.tmp" in generation 2 by the life "1a2b3c4d" of the job;
// "step-000000100.2.tmp" by "".
std::string StepName(int64_t step);
std::string TemporaryStepName(int64_t step, int64_t generation, absl::string_view life);
// The step of a name that StepName has made; nothing for any other.
std::optional<int64_t> ParseStepName(absl::string_view name);
// Whether it is the name of a step that is written, or was when its writer died.
bool IsTemporaryStepName(absl::string_view name);
// Whether it is the name of a step that SetStepAside has put out of the way.
bool IsBrokenStepName(absl::string_view name);

// The steps that have a folder, ascending, whole or not; none, if the folder is not there.
std::vector<int64_t> ListSteps(Files& files, const std::string& folder);

// The manifest of a step.
// Errors: as ParseManifest; NotFound.
Manifest ReadManifest(Files& files, const std::string& folder, int64_t step);

struct StepVerdict {
  std::vector<std::string> problems;  // a line each; none: the step is whole
  // Its own manifest and files are, whatever has become of the steps that it refers to: others may have elements in it.
  bool has_own_files = false;
  int64_t num_bytes = 0;  // of elements that were read
};

// Whether a step is whole: its manifest parses and is of this step, and every file that it names is there, with its size, and
// a header with its checksum; so are those of other steps that it refers to, as far as it refers to them. Elements are
// not read.
// Cost:   reads the headers of all files.
// Errors: all but DataLoss and NotFound, which alone say that a step is broken: what cannot be read now, or not by this
//         Weft, may be whole.
StepVerdict InspectStep(Files& files, const std::string& folder, int64_t step);

// The same, and reads all elements and compares their checksums.
// Errors: as InspectStep.
StepVerdict VerifyStep(Files& files, const std::string& folder, int64_t step);

// A step to go on from.
struct FoundStep {
  std::optional<int64_t> step;       // the highest that is whole; nothing, if none is
  std::vector<std::string> skipped;  // what is wrong with higher ones
};
// Looks at all of them: the file `latest` is a hint for people.
// Errors: as InspectStep.
FoundStep FindLatestStep(Files& files, const std::string& folder);
// The same for a run that goes on in the folder: it begins anew only where there has been no step.
// Errors: also DataLoss that names the steps, if there are any, of which none is whole.
FoundStep FindStepToGoOnFrom(Files& files, const std::string& folder);

// Renames a step to "step-000000100.broken", ".broken-2" if that is taken, and so on; returns the new path.
// Errors: those of the files.
std::string SetStepAside(Files& files, const std::string& folder, int64_t step);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_FOLDER_STEP_FOLDER_H_
