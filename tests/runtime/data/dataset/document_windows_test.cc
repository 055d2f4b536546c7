#include "runtime/data/dataset/document_windows.h"

#include <optional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"
#include "tests/runtime/data/dataset/read_sample.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

// The oracle: the tokens of all documents with their separators, and whether each is the first of its document.
struct Stream {
  std::vector<int32_t> tokens;
  std::vector<bool> begins;
};

Stream NaiveStream(const std::vector<int32_t>& tokens, const std::vector<int64_t>& lengths,
                   std::optional<int32_t> separator) {
  Stream stream;
  size_t at = 0;
  for (const int64_t length : lengths) {
    const size_t first = stream.tokens.size();
    for (int64_t i = 0; i < length; ++i) stream.tokens.push_back(tokens[at++]);
    if (separator) stream.tokens.push_back(*separator);
    stream.begins.resize(stream.tokens.size(), false);
    if (stream.tokens.size() > first) stream.begins[first] = true;
  }
  return stream;
}

TEST(DocumentWindowsTest, EqualsTheStreamCutByHand) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> lengths(1 + random() % 12);
    int64_t sum = 0;
    for (int64_t& length : lengths) sum += length = static_cast<int64_t>(random() % 7);
    std::vector<int32_t> tokens(static_cast<size_t>(sum));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 100);
    DocumentWindowsOptions options = {.context = 1 + static_cast<int64_t>(random() % 5)};
    if (random() % 2 == 0) options.separator = 1000;
    if (random() % 2 == 0) options.border_target = -100;
    const Stream stream = NaiveStream(tokens, lengths, options.separator);
    const auto num_tokens = static_cast<int64_t>(stream.tokens.size());
    if (num_tokens <= options.context) continue;
    const DocumentWindows windows(tokens, lengths, options);
    ASSERT_EQ(windows.num_samples(), (num_tokens - 1) / options.context);
    for (int64_t w = 0; w < windows.num_samples(); ++w) {
      const std::vector<std::vector<int32_t>> sample = ReadSample(windows, w);
      for (int64_t t = 0; t < options.context; ++t) {
        const auto at = static_cast<size_t>(w * options.context + t);
        EXPECT_EQ(sample[0][static_cast<size_t>(t)], stream.tokens[at]);
        const bool is_border = stream.begins[at + 1] && options.border_target.has_value();
        EXPECT_EQ(sample[1][static_cast<size_t>(t)], is_border ? -100 : stream.tokens[at + 1]);
      }
    }
  }
}

TEST(DocumentWindowsTest, AnExample) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6};
  const DocumentWindows windows(tokens, std::vector<int64_t>{2, 4},
                                {.context = 3, .separator = 0, .border_target = -100, .name = "two.bin"});
  // 1 2 0 3 4 5 6 0
  ASSERT_EQ(windows.num_samples(), 2);
  EXPECT_THAT(ReadSample(windows, 0), ElementsAre(ElementsAre(1, 2, 0), ElementsAre(2, 0, -100)));
  EXPECT_THAT(ReadSample(windows, 1), ElementsAre(ElementsAre(3, 4, 5), ElementsAre(4, 5, 6)));
  EXPECT_EQ(windows.NameOf(0), "'two.bin', window 0: document 0 from token 0 to document 1");
}

TEST(DocumentWindowsTest, RefusesBadArguments) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  EXPECT_EQ(InvalidArgumentMessage([&] { DocumentWindows(tokens, std::vector<int64_t>{2}, {.context = 1}); }),
            "documents: their lengths add up to 2, there are 3 tokens");
  EXPECT_EQ(InvalidArgumentMessage([&] { DocumentWindows(tokens, std::vector<int64_t>{3}, {.context = 3}); }),
            "documents: 3 tokens are too few: a sample of context 3 takes 4");
  EXPECT_EQ(InvalidArgumentMessage([&] { DocumentWindows(tokens, std::vector<int64_t>{3}, {.context = 0}); }),
            "documents: context: expected at least 1, got 0");
}

}  // namespace
}  // namespace weft
