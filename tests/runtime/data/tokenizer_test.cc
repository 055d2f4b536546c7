#include "runtime/data/tokenizer.h"

#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Function>
Error ErrorOf(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  return Error(absl::StatusCode::kOk, "no error");
}

std::string AllBytes() {
  std::string text(256, '\0');
  std::iota(text.begin(), text.end(), '\0');
  return text;
}

TEST(BytesTokenizerTest, TokensAreTheBytes) {
  const auto tokenizer = MakeTokenizer("bytes", "");
  EXPECT_EQ(tokenizer->name(), "bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_THAT(tokenizer->Encode("A\n\xff"), ElementsAre(65, 10, 255));
  EXPECT_THAT(tokenizer->Encode(""), ElementsAre());
  std::vector<int32_t> ids(256);
  std::iota(ids.begin(), ids.end(), 0);
  EXPECT_EQ(tokenizer->Encode(AllBytes()), ids);
  EXPECT_EQ(tokenizer->Decode(ids), AllBytes());
}

TEST(CharsTokenizerTest, VocabularyIsTheCodePointsInOrder) {
  const std::string text =
      "b\xc3\xa9"
      "ab\xe2\x80\x98\n";  // b é a b ‘ newline
  const auto tokenizer = MakeTokenizer("chars", text);
  EXPECT_EQ(tokenizer->name(), "chars");
  EXPECT_EQ(tokenizer->vocab_size(), 5);
  EXPECT_THAT(tokenizer->Encode(text), ElementsAre(2, 3, 1, 2, 4, 0));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text)), text);
  EXPECT_EQ(tokenizer->Decode({4, 3}), "\xe2\x80\x98\xc3\xa9");
  EXPECT_EQ(tokenizer->Decode({}), "");
}

TEST(CharsTokenizerTest, NamesWhereTheTextIsNotUtf8) {
  const Error error = ErrorOf([] { MakeTokenizer("chars", "ab\xc3\xa9\xff"); });
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error.message(),
            "the text is not UTF-8: byte 0xff at offset 4 (tokenizer \"bytes\" takes any text)");
  EXPECT_THAT(ErrorOf([] { MakeTokenizer("chars", "ab\xe2\x80"); }).message(),
              HasSubstr("byte 0xe2 at offset 2"));
  EXPECT_THAT(ErrorOf([] { MakeTokenizer("chars", ""); }).message(), HasSubstr("the text is empty"));
}

TEST(CharsTokenizerTest, NamesACharacterOutsideTheVocabulary) {
  const auto tokenizer = MakeTokenizer("chars", "abc");
  EXPECT_EQ(ErrorOf([&] { tokenizer->Encode("ab\xc3\xa9"); }).message(),
            "character U+00E9 at byte offset 2 is not in the vocabulary of 3 characters that the tokenizer "
            "was made "
            "from");
}

TEST(TokenizerTest, RefusesIdsOutsideTheVocabulary) {
  const auto bytes = MakeTokenizer("bytes", "");
  EXPECT_EQ(ErrorOf([&] {
              bytes->Decode({65, 256});
            }).message(),
            "token 256 at position 1 is not of tokenizer bytes: expected 0 to 255");
  EXPECT_EQ(ErrorOf([&] { bytes->Decode({-1}); }).message(),
            "token -1 at position 0 is not of tokenizer bytes: expected 0 to 255");
  const auto chars = MakeTokenizer("chars", "abc");
  EXPECT_EQ(ErrorOf([&] {
              chars->Decode({0, 1, 2, 3});
            }).message(),
            "token 3 at position 3 is not of tokenizer chars: expected 0 to 2");
}

TEST(TokenizerTest, AnUnknownNameListsTheKnownOnes) {
  EXPECT_EQ(ErrorOf([] { MakeTokenizer("words", "abc"); }).message(),
            "unknown tokenizer \"words\": expected bytes or chars");
}

TEST(TokenizerTest, ComesBackFromJson) {
  const std::string text = "hack \xf0\xa3\x8e\xb4 \"quoted\"\n";
  for (const char* name : {"bytes", "chars"}) {
    const auto tokenizer = MakeTokenizer(name, text);
    const auto copy = TokenizerFromJson(tokenizer->ToJson());
    EXPECT_EQ(copy->name(), tokenizer->name());
    EXPECT_EQ(copy->vocab_size(), tokenizer->vocab_size());
    EXPECT_EQ(copy->Encode(text), tokenizer->Encode(text));
    EXPECT_EQ(copy->Decode(copy->Encode(text)), text);
    EXPECT_EQ(copy->ToJson(), tokenizer->ToJson());
  }
}

TEST(TokenizerTest, RefusesBrokenJson) {
  for (const char* json :
       {"", "{", "[]", "{}", "{\"name\":3}", "{\"name\":\"words\"}", "{\"name\":\"chars\"}",
        "{\"name\":\"chars\",\"vocabulary\":[]}", "{\"name\":\"chars\",\"vocabulary\":[98,97]}",
        "{\"name\":\"chars\",\"vocabulary\":[97,97]}", "{\"name\":\"chars\",\"vocabulary\":[55296]}",
        "{\"name\":\"chars\",\"vocabulary\":\"abc\"}"}) {
    const Error error = ErrorOf([&] { TokenizerFromJson(json); });
    EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss) << json;
    EXPECT_THAT(error.message(), HasSubstr("broken tokenizer description")) << json;
  }
}

}  // namespace
}  // namespace weft
