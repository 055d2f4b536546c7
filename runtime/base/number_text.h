#ifndef WEFT_RUNTIME_BASE_NUMBER_TEXT_H_
#define WEFT_RUNTIME_BASE_NUMBER_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// The shortest text that reads back to the same bits, where absl::StrCat and absl::StrJoin write six digits.
std::string NumberText(double number);

// Those of several.
std::string JoinNumbers(absl::Span<const double> numbers, absl::string_view separator);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_NUMBER_TEXT_H_
