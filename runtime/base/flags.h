#ifndef WEFT_RUNTIME_BASE_FLAGS_H_
#define WEFT_RUNTIME_BASE_FLAGS_H_

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/base/flags_usage.h"

namespace weft {

// How a program starts: its flags are ABSL_FLAGs of its own file, its face is a FlagsUsage, and main is one
// line:
//   int main(int argc, char** argv) { return weft::RunMain(argc, argv, Usage(), Train); }

// What a command line said, beyond the values that the ABSL_FLAGs now hold.
struct ParsedFlags {
  bool help = false;          // --help was given; nothing after it was read
  bool version = false;       // --version was given; nothing after it was read
  bool print_config = false;  // --print_config was given
  std::set<std::string>
      given;  // names of the flags that were given, there or in a file, whatever their values

  bool Given(absl::string_view name) const { return given.count(std::string(name)) > 0; }
};

// Sets the flags from the command line: --name=value, --name value, and for a bool --name or --noname. Dashes
// in names are underscores; one leading dash will do; the last of several values counts. --config=FILE sets flags from a
// file (ApplyConfigFiles), several files one after another; what the command line says itself counts, wherever it stands.
//
// Errors: InvalidArgument for an unknown flag (names the nearest one), a value that is missing or cannot be
//         read (names flag, value and what was expected), an argument that is no flag; those of ApplyConfigFiles.
ParsedFlags ParseFlags(int argc, const char* const* argv, const FlagsUsage& usage);

// The text of --help: the summary, each group's flags with default and help text, the examples.
std::string FlagsHelp(const FlagsUsage& usage);

// The line of --version: "weft 0.1.0\n".
std::string VersionLine();

// Parses the flags and returns what `body` returns: the exit code of the program. --help, --version and --print_config
// (EffectiveConfig) print on stdout and give 0. An exception of either prints one line, "error: ...", on stderr and gives 1; a
// launcher that has named a file for it finds it there (runtime/base/error_file.h). Likewise where it would give 0, but stdout
// cannot be written, as on a full disk.
int RunMain(int argc, const char* const* argv, const FlagsUsage& usage,
            const std::function<int(const ParsedFlags&)>& body);
int RunMain(int argc, const char* const* argv, const FlagsUsage& usage, const std::function<int()>& body);

// `path` as the user meant it: under `bazel run`, which changes folder, a relative path is taken from where
// the user stands. An empty path stays empty.
std::string UserPath(absl::string_view path);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_FLAGS_H_
