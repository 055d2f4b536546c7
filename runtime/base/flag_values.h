// The flags of a program by name: their definitions, and setting them from texts.

#ifndef WEFT_RUNTIME_BASE_FLAG_VALUES_H_
#define WEFT_RUNTIME_BASE_FLAG_VALUES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/strings/string_view.h"
#include "runtime/base/flags_usage.h"

namespace weft {

// Errors: Internal if no ABSL_FLAG defines it: a program lists a flag that it does not have.
absl::CommandLineFlag& FlagNamed(absl::string_view name);

// Whether a flag has another value than its default. Unlike ParsedFlags::Given it says the same of a file that --print_config
// wrote, which names every flag: for checks of flags that exclude each other.
// Errors: as FlagNamed.
bool IsGiven(absl::string_view name);

// The flags of all groups, in their order.
std::vector<std::string> FlagNames(const FlagsUsage& usage);

// "a whole number"; nothing for a type of the program's own, which says so itself.
std::string ExpectedValue(const absl::CommandLineFlag& flag);

// What was expected instead, if `value` cannot be read; otherwise the flag has it.
std::optional<std::string> TrySetFlag(absl::string_view name, absl::string_view value);

// The name nearest to a wrong one, unless it is too far away to be meant.
std::optional<std::string> MeantName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_FLAG_VALUES_H_
