#ifndef WEFT_RUNTIME_DATA_UTF8_H_
#define WEFT_RUNTIME_DATA_UTF8_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// One code point as it stands in a text. `num_bytes` 0: the bytes there are not UTF-8.
struct CodePoint {
  int32_t value = 0;
  int64_t num_bytes = 0;

  bool operator==(const CodePoint&) const = default;
};

// The code point that starts at byte `offset` of `text`. Strict: overlong forms, surrogates, values above
// U+10FFFF and cut sequences are not UTF-8. `offset` is below text.size().
CodePoint DecodeUtf8At(absl::string_view text, int64_t offset);

// Whether all of it is UTF-8.
bool IsUtf8(absl::string_view text);

// Appends the UTF-8 form of `code_point`.
// Errors: InvalidArgument for a surrogate or a value outside Unicode.
void AppendUtf8(int32_t code_point, std::string* text);

// `bytes` as text that is safe to print: newlines, tabs and what is printable in UTF-8 stay, every other byte
// (broken UTF-8, control characters) becomes \xNN. The result is always valid UTF-8.
std::string PrintableText(absl::string_view bytes);

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_UTF8_H_
