#include "runtime/data/dataset/concatenated.h"

#include <memory>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/data/dataset/token_windows.h"
#include "tests/message_of.h"
#include "tests/runtime/data/dataset/read_sample.h"

namespace weft {
namespace {

std::shared_ptr<const Dataset> Windows(const std::vector<int32_t>& tokens, int64_t context,
                                       const char* name) {
  return std::make_shared<TokenWindows>(tokens, TokenWindowsOptions{.context = context, .name = name});
}

TEST(ConcatenatedTest, OneAfterAnother) {
  std::vector<int32_t> tokens(40);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::vector<int32_t> few(tokens.begin(), tokens.begin() + 6);
  const ConcatenatedDataset all({Windows(few, 5, "few"), Windows(tokens, 5, "many"), Windows(few, 5, "few")});
  ASSERT_EQ(all.num_samples(), 1 + 7 + 1);
  EXPECT_EQ(all.fields(), WindowFields(5));
  const std::vector<int32_t> firsts = {0, 0, 5, 10, 15, 20, 25, 30, 0};
  for (int64_t i = 0; i < all.num_samples(); ++i) {
    EXPECT_EQ(ReadSample(all, i)[0][0], firsts[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(all.NameOf(0), "'few', tokens [0, 6)");
  EXPECT_EQ(all.NameOf(2), "'many', tokens [5, 11)");
}

TEST(ConcatenatedTest, RefusesWhatDoesNotGoTogether) {
  const std::vector<int32_t> tokens(40, 1);
  EXPECT_EQ(InvalidArgumentMessage([] { ConcatenatedDataset({}); }),
            "concatenated: expected at least one dataset");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              ConcatenatedDataset({Windows(tokens, 5, ""), nullptr});
            }),
            "concatenated: dataset 1 is null");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              ConcatenatedDataset({Windows(tokens, 5, ""), Windows(tokens, 6, "")});
            }),
            "concatenated: dataset 1 has inputs i32[6], targets i32[6], the first has inputs i32[5], targets "
            "i32[5]");
}

}  // namespace
}  // namespace weft
