#include "tools/faults/saved_state.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>

namespace weft {

std::optional<SavedState> ReadSavedState(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  uint64_t header = 0;
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header > bytes.size() - sizeof(header)) return std::nullopt;
  SavedState state = {.tensors = nlohmann::json::parse(bytes.substr(sizeof(header), header), nullptr, false),
                      .elements = bytes.substr(sizeof(header) + header)};
  if (!state.tensors.is_object()) return std::nullopt;
  state.tensors.erase("__metadata__");
  return state;
}

}  // namespace weft
