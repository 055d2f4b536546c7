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
inline constexpr char kLatestName[] = "latest";

// "step-000000100"; while it is written, "step-000000100.2.tmp" in generation 2.
std::string StepName(int64_t step);
std::string TemporaryStepName(int64_t step, int64_t generation);
// The step of a name that StepName has made; nothing for any other.
std::optional<int64_t> ParseStepName(absl::string_view name);
// Whether it is the name of a step that is written, or was when its writer died.
bool IsTemporaryStepName(absl::string_view name);

// The steps that have a folder, ascending, whole or not; none, if the folder is not there.
std::vector<int64_t> ListSteps(Files& files, const std::string& folder);

// The manifest of a step.
// Errors: as ParseManifest; NotFound.
Manifest ReadManifest(Files& files, const std::string& folder, int64_t step);

// What is wrong with a step, a line each; nothing, if it is whole: its manifest parses and is of this step, and every file
// that it names is there, with its size, and a header with its checksum; so are those of other steps that it refers to, as
// far as it refers to them. Elements are not read.
// Cost: reads the headers of all files.
std::vector<std::string> CheckStep(Files& files, const std::string& folder, int64_t step);

// The same, and reads all elements and compares their checksums. `num_bytes`: of the elements.
struct StepVerdict {
  std::vector<std::string> problems;
  int64_t num_bytes = 0;
};
StepVerdict VerifyStep(Files& files, const std::string& folder, int64_t step);

// A step to go on from.
struct FoundStep {
  std::optional<int64_t> step;       // the highest that is whole; nothing, if none is
  std::vector<std::string> skipped;  // what is wrong with higher ones
};
// Looks at all of them: the file `latest` is a hint for people.
FoundStep FindLatestStep(Files& files, const std::string& folder);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_FOLDER_STEP_FOLDER_H_
