#include "runtime/data/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/data/utf8.h"

namespace weft {
namespace {

constexpr absl::string_view kBytesName = "bytes";
constexpr absl::string_view kCharsName = "chars";

void RequireInVocabulary(const Tokenizer& tokenizer, int32_t token, size_t position) {
  WEFT_REQUIRE(token >= 0 && token < tokenizer.vocab_size(), "token ", token, " at position ", position,
               " is not of tokenizer ", tokenizer.name(), ": expected 0 to ", tokenizer.vocab_size() - 1);
}

class BytesTokenizer : public Tokenizer {
 public:
  absl::string_view name() const override { return kBytesName; }
  int64_t vocab_size() const override { return 256; }

  std::vector<int32_t> Encode(absl::string_view text) const override {
    std::vector<int32_t> tokens(text.size());
    std::transform(text.begin(), text.end(), tokens.begin(),
                   [](char c) { return static_cast<unsigned char>(c); });
    return tokens;
  }

  std::string Decode(absl::Span<const int32_t> tokens) const override {
    std::string text(tokens.size(), '\0');
    for (size_t i = 0; i < tokens.size(); ++i) {
      RequireInVocabulary(*this, tokens[i], i);
      text[i] = static_cast<char>(tokens[i]);
    }
    return text;
  }

  std::string ToJson() const override { return nlohmann::json{{"name", std::string(kBytesName)}}.dump(); }
};

CodePoint RequireCodePoint(absl::string_view text, int64_t offset) {
  const CodePoint point = DecodeUtf8At(text, offset);
  WEFT_REQUIRE(
      point.num_bytes > 0,
      absl::StrFormat("the text is not UTF-8: byte 0x%02x at offset %d (tokenizer \"bytes\" takes any text)",
                      static_cast<unsigned char>(text[static_cast<size_t>(offset)]), offset));
  return point;
}

class CharsTokenizer : public Tokenizer {
 public:
  // `vocabulary`: code points, ascending, each once.
  explicit CharsTokenizer(std::vector<int32_t> vocabulary) : vocabulary_(std::move(vocabulary)) {
    for (size_t i = 0; i < vocabulary_.size(); ++i) token_of_[vocabulary_[i]] = static_cast<int32_t>(i);
  }

  absl::string_view name() const override { return kCharsName; }
  int64_t vocab_size() const override { return static_cast<int64_t>(vocabulary_.size()); }

  std::vector<int32_t> Encode(absl::string_view text) const override {
    std::vector<int32_t> tokens;
    int64_t offset = 0;
    while (offset < static_cast<int64_t>(text.size())) {
      const CodePoint point = RequireCodePoint(text, offset);
      const auto found = token_of_.find(point.value);
      WEFT_REQUIRE(
          found != token_of_.end(),
          absl::StrFormat(
              "character U+%04X at byte offset %d is not in the vocabulary of %d characters that the "
              "tokenizer was made from",
              point.value, offset, vocab_size()));
      tokens.push_back(found->second);
      offset += point.num_bytes;
    }
    return tokens;
  }

  std::string Decode(absl::Span<const int32_t> tokens) const override {
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
      RequireInVocabulary(*this, tokens[i], i);
      AppendUtf8(vocabulary_[static_cast<size_t>(tokens[i])], &text);
    }
    return text;
  }

  std::string ToJson() const override {
    return nlohmann::json{{"name", std::string(kCharsName)}, {"vocabulary", vocabulary_}}.dump();
  }

 private:
  std::vector<int32_t> vocabulary_;
  absl::flat_hash_map<int32_t, int32_t> token_of_;
};

std::vector<int32_t> VocabularyOf(absl::string_view text) {
  WEFT_REQUIRE(!text.empty(),
               "tokenizer \"chars\" needs a text to take its vocabulary from; the text is empty");
  // A flag a code point: a text has millions of characters of a few hundred kinds.
  std::vector<bool> seen(0x110000, false);
  int64_t offset = 0;
  while (offset < static_cast<int64_t>(text.size())) {
    const CodePoint point = RequireCodePoint(text, offset);
    seen[static_cast<size_t>(point.value)] = true;
    offset += point.num_bytes;
  }
  std::vector<int32_t> vocabulary;
  for (size_t value = 0; value < seen.size(); ++value) {
    if (seen[value]) vocabulary.push_back(static_cast<int32_t>(value));
  }
  return vocabulary;
}

[[noreturn]] void ThrowBroken(absl::string_view why) {
  Throw(absl::StatusCode::kDataLoss, "broken tokenizer description: ", why);
}

// Checked here, since a broken list would only show as wrong text much later.
std::vector<int32_t> ReadVocabulary(const nlohmann::json& json) {
  std::vector<int32_t> vocabulary = json.at("vocabulary").get<std::vector<int32_t>>();
  std::string text;
  for (int32_t code_point : vocabulary) AppendUtf8(code_point, &text);
  if (vocabulary.empty()) ThrowBroken("its vocabulary is empty");
  if (VocabularyOf(text) != vocabulary) ThrowBroken("its vocabulary is not ascending");
  return vocabulary;
}

}  // namespace

std::unique_ptr<Tokenizer> MakeTokenizer(absl::string_view name, absl::string_view text) {
  if (name == kBytesName) return std::make_unique<BytesTokenizer>();
  if (name == kCharsName) return std::make_unique<CharsTokenizer>(VocabularyOf(text));
  ThrowInvalidArgument("unknown tokenizer \"", name, "\": expected bytes or chars");
}

std::unique_ptr<Tokenizer> TokenizerFromJson(absl::string_view json) {
  try {
    const nlohmann::json parsed = nlohmann::json::parse(json.begin(), json.end());
    const std::string name = parsed.at("name").get<std::string>();
    if (name == kBytesName) return std::make_unique<BytesTokenizer>();
    if (name == kCharsName) return std::make_unique<CharsTokenizer>(ReadVocabulary(parsed));
    ThrowBroken(absl::StrCat("its name is \"", name, "\""));
  } catch (const nlohmann::json::exception& error) {
    ThrowBroken(error.what());
  } catch (const Error& error) {
    if (error.code() == absl::StatusCode::kDataLoss) throw;
    ThrowBroken(error.message());
  }
}

}  // namespace weft
