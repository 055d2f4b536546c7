#include "runtime/data/dataset/packing.h"

#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

// A token as (document, place in it); place -1: the separator after it.
using Token = std::pair<int64_t, int64_t>;

// The oracle: all tokens in a list, and windows cut out of it.
std::vector<std::vector<Token>> NaiveWindows(const std::vector<int64_t>& lengths,
                                             const PackingOptions& options) {
  std::vector<Token> all;
  for (size_t document = 0; document < lengths.size(); ++document) {
    for (int64_t i = 0; i < lengths[document]; ++i) all.emplace_back(document, i);
    if (options.separators) all.emplace_back(document, -1);
  }
  std::vector<std::vector<Token>> windows;
  for (size_t begin = 0; begin + static_cast<size_t>(options.window) <= all.size();
       begin += static_cast<size_t>(options.window - options.overlap)) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
    windows.emplace_back(first, first + options.window);
  }
  return windows;
}

std::vector<Token> TokensOf(const std::vector<DocumentPiece>& pieces) {
  std::vector<Token> tokens;
  for (const DocumentPiece& piece : pieces) {
    EXPECT_TRUE(piece.count > 0 || piece.ends) << "an empty piece";
    for (int64_t i = 0; i < piece.count; ++i) tokens.emplace_back(piece.document, piece.first + i);
    if (piece.ends) tokens.emplace_back(piece.document, -1);
  }
  return tokens;
}

TEST(PackingTest, PiecesOfAWindow) {
  const Packing packing(std::vector<int64_t>{3, 0, 5, 1}, {.window = 4});
  EXPECT_EQ(packing.num_windows(), 2);
  EXPECT_EQ(packing.num_tokens(), 9);
  EXPECT_THAT(packing.At(0), ElementsAre(DocumentPiece{.document = 0, .first = 0, .count = 3},
                                         DocumentPiece{.document = 2, .first = 0, .count = 1}));
  EXPECT_THAT(packing.At(1), ElementsAre(DocumentPiece{.document = 2, .first = 1, .count = 4}));
  EXPECT_EQ(packing.FirstDocumentOf(1), 2);
}

TEST(PackingTest, EqualsTheListOfAllTokens) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 400; ++round) {
    std::vector<int64_t> lengths(random() % 20);
    for (int64_t& length : lengths) length = static_cast<int64_t>(random() % (round % 2 == 0 ? 4 : 40));
    PackingOptions options = {.window = 1 + static_cast<int64_t>(random() % 12),
                              .separators = random() % 2 == 0};
    options.overlap = static_cast<int64_t>(random() % static_cast<uint64_t>(options.window));
    const std::vector<std::vector<Token>> expected = NaiveWindows(lengths, options);
    const Packing packing(lengths, options);
    ASSERT_EQ(packing.num_windows(), static_cast<int64_t>(expected.size()));
    for (int64_t w = 0; w < packing.num_windows(); ++w) {
      const std::vector<DocumentPiece> pieces = packing.At(w);
      ASSERT_EQ(TokensOf(pieces), expected[static_cast<size_t>(w)]) << "window " << w;
      EXPECT_EQ(packing.FirstDocumentOf(w), pieces[0].document);
    }
  }
}

// 10^6 documents of 1 to 3 tokens, by closed form, and every window: one document after another, the searches would take 10^11
// steps.
TEST(PackingTest, ManyDocumentsAreFoundBySearch) {
  std::vector<int64_t> lengths(1000000);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = 1 + static_cast<int64_t>(i % 3);
  const Packing packing(lengths, {.window = 6});
  ASSERT_EQ(packing.num_tokens(), 333333 * 6 + 1);
  ASSERT_EQ(packing.num_windows(), 333333);
  int64_t wrong = 0;
  for (int64_t w = 0; w < packing.num_windows(); ++w) {
    const std::vector<DocumentPiece> expected = {{.document = 3 * w, .first = 0, .count = 1},
                                                 {.document = 3 * w + 1, .first = 0, .count = 2},
                                                 {.document = 3 * w + 2, .first = 0, .count = 3}};
    wrong += packing.At(w) != expected || packing.FirstDocumentOf(w) != 3 * w;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(PackingTest, RefusesBadArguments) {
  const std::vector<int64_t> lengths = {3, 2};
  EXPECT_EQ(Packing(lengths, {.window = 6}).num_windows(), 0);
  EXPECT_EQ(Packing({}, {.window = 1}).num_windows(), 0);
  EXPECT_EQ(InvalidArgumentMessage([&] { Packing(lengths, {.window = 0}); }),
            "packing: window: expected at least 1 token, got 0");
  EXPECT_EQ(InvalidArgumentMessage([&] { Packing(lengths, {.window = 2, .overlap = 2}); }),
            "packing: overlap: expected 0 to 1, below the window, got 2");
  EXPECT_EQ(InvalidArgumentMessage([] {
              Packing(std::vector<int64_t>{3, -2}, {.window = 2});
            }),
            "packing: document 1 has length -2");
  const Packing packing(lengths, {.window = 2});
  EXPECT_EQ(InvalidArgumentMessage([&] { packing.At(2); }), "packing: window 2 is not within [0, 2)");
  EXPECT_EQ(InvalidArgumentMessage([&] { packing.At(-1); }), "packing: window -1 is not within [0, 2)");
}

}  // namespace
}  // namespace weft
