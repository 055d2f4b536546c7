// The face of a program: its flags by group, what --help prints, which files of others it reads.

#ifndef WEFT_RUNTIME_BASE_FLAGS_USAGE_H_
#define WEFT_RUNTIME_BASE_FLAGS_USAGE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

// A heading of --help, and the flags under it in the order to print them, by name without dashes.
struct FlagGroup {
  std::string title;
  std::vector<std::string> flags;
};

// A flag and its value, as they would stand on the command line.
struct FlagValue {
  std::string flag;
  std::string value;
  // Of a file of another system, which does not say it: what that system does then. The flag is not given by it, so that a run
  // that goes on keeps its own.
  bool is_default = false;

  bool operator==(const FlagValue&) const = default;
};

// The flags around a configuration file.
struct FlagsAround {
  // What a flag will be if the file does not say: from the command line, from a file of flags, or as it is.
  std::function<std::string(absl::string_view flag)> value_of = nullptr;
  // Whether the command line gives it, or a file of flags behind this one, which counts whatever the file says; null: none is
  // given.
  std::function<bool(absl::string_view flag)> is_given = nullptr;
};

// A configuration file of another system, which --config takes too.
struct ForeignConfig {
  std::string name;  // "DeepSpeed"
  std::vector<std::string>
      keys;  // a file that has one of them at its top is one of the other system's, all of it
  // What the file says, as values of the program's flags.
  // Errors: InvalidArgument that names the key, what was given and what was expected.
  std::function<std::vector<FlagValue>(absl::string_view text, const FlagsAround& around)> translate;
};

// What --help prints. A flag that no group names is not the program's: giving it is an error, so that flags
// of linked libraries stay hidden.
struct FlagsUsage {
  std::string summary;                      // what the program does, one or more lines
  std::vector<FlagGroup> groups;            // units belong into the flags' own help texts
  std::vector<std::string> examples;        // whole command lines
  std::vector<ForeignConfig> foreign = {};  // files of other systems that --config takes
};

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_FLAGS_USAGE_H_
