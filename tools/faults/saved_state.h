#ifndef WEFT_TOOLS_FAULTS_SAVED_STATE_H_
#define WEFT_TOOLS_FAULTS_SAVED_STATE_H_

#include <optional>
#include <string>

#include "nlohmann/json.hpp"

namespace weft {

// What a safetensors file holds, but for the texts in it, which name files: the header as JSON, and the elements.
struct SavedState {
  nlohmann::json tensors;
  std::string elements;

  bool operator==(const SavedState&) const = default;
};

// Of a file; nothing if there is none, or no such.
std::optional<SavedState> ReadSavedState(const std::string& path);

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_SAVED_STATE_H_
