#ifndef WEFT_TOOLS_FAULTS_CHAOS_PLACES_H_
#define WEFT_TOOLS_FAULTS_CHAOS_PLACES_H_

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace weft {

// Where a run of chaos has what, below its folder. `job`: "calm" or "hurt".
struct ChaosPlaces {
  std::string folder;

  std::string RunId(const std::string& job) const { return absl::StrCat("chaos-", getpid(), "-", job); }
  std::string LogOf(const std::string& job) const { return absl::StrCat(folder, "/", job, ".log"); }
  std::string Saved(const std::string& job) const { return absl::StrCat(folder, "/", job, ".safetensors"); }
  std::string CheckpointsOf(const std::string& job) const { return absl::StrCat(folder, "/", job); }
  std::string Checkpoints() const { return CheckpointsOf("hurt"); }
  std::string Temporary() const { return absl::StrCat(folder, "/tmp"); }
};

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_CHAOS_PLACES_H_
