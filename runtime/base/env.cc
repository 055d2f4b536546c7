#include "runtime/base/env.h"

#include <cstdlib>

namespace weft {
namespace {

std::optional<std::string> Read(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

}  // namespace

std::optional<std::string> BuildWorkingDirectory() { return Read("BUILD_WORKING_DIRECTORY"); }

std::optional<std::string> BuildWorkspaceDirectory() { return Read("BUILD_WORKSPACE_DIRECTORY"); }

}  // namespace weft
