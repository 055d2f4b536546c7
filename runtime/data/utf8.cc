#include "runtime/data/utf8.h"

#include "absl/strings/str_format.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr int32_t kLastCodePoint = 0x10ffff;

bool IsSurrogate(int32_t code_point) { return code_point >= 0xd800 && code_point <= 0xdfff; }

bool IsPrintable(int32_t code_point) {
  if (code_point < 0x20) return code_point == '\n' || code_point == '\t';
  return code_point < 0x7f || code_point > 0x9f;
}

}  // namespace

CodePoint DecodeUtf8At(absl::string_view text, int64_t offset) {
  const auto byte = [&](int64_t i) {
    return static_cast<unsigned char>(text[static_cast<size_t>(offset + i)]);
  };
  const int32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  // 0xc0 and 0xc1 could only begin overlong forms; 0xf5 and above would pass U+10FFFF.
  if (first < 0xc2 || first > 0xf4) return {};
  const int64_t num_bytes = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (offset + num_bytes > static_cast<int64_t>(text.size())) return {};
  int32_t value = first & (0x7f >> num_bytes);
  for (int64_t i = 1; i < num_bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = (value << 6) | (byte(i) & 0x3f);
  }
  const int32_t smallest = num_bytes == 2 ? 0x80 : num_bytes == 3 ? 0x800 : 0x10000;
  if (value < smallest || value > kLastCodePoint || IsSurrogate(value)) return {};
  return {value, num_bytes};
}

bool IsUtf8(absl::string_view text) {
  int64_t offset = 0;
  while (offset < static_cast<int64_t>(text.size())) {
    const int64_t num_bytes = DecodeUtf8At(text, offset).num_bytes;
    if (num_bytes == 0) return false;
    offset += num_bytes;
  }
  return true;
}

void AppendUtf8(int32_t code_point, std::string* text) {
  WEFT_REQUIRE(code_point >= 0 && code_point <= kLastCodePoint && !IsSurrogate(code_point), code_point,
               " is not a Unicode code point: expected 0 to 1114111 without the surrogates 55296 to 57343");
  if (code_point < 0x80) {
    text->push_back(static_cast<char>(code_point));
    return;
  }
  const int num_following = code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  const int32_t marker = num_following == 1 ? 0xc0 : num_following == 2 ? 0xe0 : 0xf0;
  text->push_back(static_cast<char>(marker | (code_point >> (6 * num_following))));
  for (int i = num_following - 1; i >= 0; --i) {
    text->push_back(static_cast<char>(0x80 | ((code_point >> (6 * i)) & 0x3f)));
  }
}

std::string PrintableText(absl::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  int64_t offset = 0;
  while (offset < static_cast<int64_t>(bytes.size())) {
    const CodePoint point = DecodeUtf8At(bytes, offset);
    const int64_t num_bytes = point.num_bytes == 0 ? 1 : point.num_bytes;
    const absl::string_view piece = bytes.substr(static_cast<size_t>(offset), static_cast<size_t>(num_bytes));
    if (point.num_bytes > 0 && IsPrintable(point.value)) {
      absl::StrAppend(&text, piece);
    } else {
      for (char c : piece) absl::StrAppendFormat(&text, "\\x%02x", static_cast<unsigned char>(c));
    }
    offset += num_bytes;
  }
  return text;
}

}  // namespace weft
