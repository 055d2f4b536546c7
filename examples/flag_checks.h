// Checks of flags' values that programs share: an error names the flag, what was given and what was expected.

#ifndef WEFT_EXAMPLES_FLAG_CHECKS_H_
#define WEFT_EXAMPLES_FLAG_CHECKS_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// `value`.
// Errors: InvalidArgument, if it is below `minimum`.
int64_t AtLeast(int64_t minimum, absl::string_view flag, int64_t value);

// The same for what is counted in ints: `value` as one.
// Errors: InvalidArgument, if it is below `minimum`, or more than an int holds.
int IntAtLeast(int minimum, absl::string_view flag, int64_t value);

// `value`.
// Errors: InvalidArgument, if it is not in [low, high).
double InRange(double low, double high, absl::string_view flag, double value);

// Errors: InvalidArgument unless `value` is among `choices`.
void OneOf(absl::string_view flag, absl::string_view value, std::initializer_list<absl::string_view> choices);

// Of a flag that names a file to write at the end of a run.
// Errors: InvalidArgument now rather than after hours, if `path` is a folder, or its folder is missing or not writable.
void CheckCanWrite(absl::string_view flag, const std::string& path);
// Likewise of a file that takes the place of what stands there (SafetensorsWriter).
// Errors: those of CheckCanWrite; InvalidArgument, if something stands there that is no file.
void CheckCanReplace(absl::string_view flag, const std::string& path);

}  // namespace weft

#endif  // WEFT_EXAMPLES_FLAG_CHECKS_H_
