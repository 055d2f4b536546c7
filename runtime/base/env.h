#ifndef WEFT_RUNTIME_BASE_ENV_H_
#define WEFT_RUNTIME_BASE_ENV_H_

#include <optional>
#include <string>

namespace weft {

// The environment that Weft's programs read, all of it: one function a variable. The library itself reads
// none. An unset variable and an empty one are the same: no value.
//
// Threads: not while another thread calls setenv.

// Where the user stood when `bazel run` started the program, which Bazel runs in a folder of its own.
std::optional<std::string> BuildWorkingDirectory();

// The source tree that `bazel run` was started in.
std::optional<std::string> BuildWorkspaceDirectory();

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_ENV_H_
