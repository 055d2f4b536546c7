#include "runtime/base/number_text.h"

#include <charconv>

#include "absl/strings/str_join.h"

namespace weft {

std::string NumberText(double number) {
  char text[32];  // 24 at most
  return std::string(text, std::to_chars(text, text + sizeof(text), number).ptr);
}

std::string JoinNumbers(absl::Span<const double> numbers, absl::string_view separator) {
  return absl::StrJoin(numbers, separator,
                       [](std::string* to, double number) { to->append(NumberText(number)); });
}

}  // namespace weft
