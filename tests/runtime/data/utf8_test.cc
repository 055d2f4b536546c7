#include "runtime/data/utf8.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

std::string Utf8(int32_t code_point) {
  std::string text;
  AppendUtf8(code_point, &text);
  return text;
}

TEST(Utf8Test, KnownForms) {
  // The examples of RFC 3629, section 7, and the edges of each length.
  EXPECT_EQ(Utf8(0x41), "A");
  EXPECT_EQ(Utf8(0x7f), "\x7f");
  EXPECT_EQ(Utf8(0x80), "\xc2\x80");
  EXPECT_EQ(Utf8(0x391), "\xce\x91");
  EXPECT_EQ(Utf8(0x7ff), "\xdf\xbf");
  EXPECT_EQ(Utf8(0x800), "\xe0\xa0\x80");
  EXPECT_EQ(Utf8(0x2262), "\xe2\x89\xa2");
  EXPECT_EQ(Utf8(0xffff), "\xef\xbf\xbf");
  EXPECT_EQ(Utf8(0x10000), "\xf0\x90\x80\x80");
  EXPECT_EQ(Utf8(0x233b4), "\xf0\xa3\x8e\xb4");
  EXPECT_EQ(Utf8(0x10ffff), "\xf4\x8f\xbf\xbf");
}

TEST(Utf8Test, EveryCodePointComesBack) {
  for (int32_t value = 0; value <= 0x10ffff; ++value) {
    if (value >= 0xd800 && value <= 0xdfff) continue;
    const std::string text = absl::StrCat("x", Utf8(value), "y");
    const CodePoint expected{value, static_cast<int64_t>(text.size()) - 2};
    ASSERT_EQ(DecodeUtf8At(text, 1), expected) << value;
  }
}

TEST(Utf8Test, RefusesWhatIsNotUtf8) {
  const struct {
    const char* what;
    std::string bytes;
  } kCases[] = {
      {"a following byte alone", "\x80"},
      {"cut after one byte", "\xe2"},
      {"cut after two bytes", "\xe2\x89"},
      {"ended by a letter", "\xe2\x89g"},
      {"overlong slash, 2 bytes", "\xc0\xaf"},
      {"overlong slash, 3 bytes", "\xe0\x80\xaf"},
      {"overlong slash, 4 bytes", "\xf0\x80\x80\xaf"},
      {"first surrogate", "\xed\xa0\x80"},
      {"last surrogate", "\xed\xbf\xbf"},
      {"above U+10FFFF", "\xf4\x90\x80\x80"},
      {"five-byte form", "\xf8\x88\x80\x80\x80"},
      {"0xff", "\xff"},
  };
  for (const auto& c : kCases) EXPECT_EQ(DecodeUtf8At(c.bytes, 0).num_bytes, 0) << c.what;
  for (int32_t value : {-1, 0xd800, 0xdfff, 0x110000}) EXPECT_THROW(Utf8(value), Error) << value;
}

TEST(PrintableTextTest, EscapesOnlyWhatIsNotText) {
  EXPECT_EQ(PrintableText(""), "");
  EXPECT_EQ(PrintableText("two\n\tlines \xe2\x80\x98Magic\xe2\x80\x99 \xf0\xa3\x8e\xb4"),
            "two\n\tlines \xe2\x80\x98Magic\xe2\x80\x99 \xf0\xa3\x8e\xb4");
  EXPECT_EQ(PrintableText("a\xff\xe2z"), "a\\xff\\xe2z");
  EXPECT_EQ(PrintableText("\x1b[31m\r\x7f"), "\\x1b[31m\\x0d\\x7f");
  EXPECT_EQ(PrintableText(std::string(1, '\0')), "\\x00");
  EXPECT_EQ(PrintableText("\xc2\x9b\xc2\xa0"), "\\xc2\\x9b\xc2\xa0");  // a C1 control, then a no-break space
}

TEST(Utf8Test, ATextIsWholeOrNot) {
  for (const char* const text : {"", "a", "gr\xc3\xbc\xc3\x9f", "\xf0\x9f\x9a\x80"})
    EXPECT_TRUE(IsUtf8(text)) << text;
  for (const char* const text : {"\xff", "a\xc3", "\xc3 b", "gr\xfc\xdf", "\xed\xa0\x80"})
    EXPECT_FALSE(IsUtf8(text));
}

}  // namespace
}  // namespace weft
