#include "runtime/data/token_file.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

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

std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::vector<int32_t> Count(int64_t n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(ReadTextFileTest, ReturnsEveryByte) {
  std::string bytes;
  for (int i = 0; i < 100000; ++i) bytes.push_back(static_cast<char>(i * 7));
  EXPECT_EQ(ReadTextFile(WriteFile("bytes.bin", bytes)), bytes);
  EXPECT_EQ(ReadTextFile(WriteFile("one", "x")), "x");
}

TEST(ReadTextFileTest, SaysWhatIsWrongWithThePath) {
  const Error missing = ErrorOf([] { ReadTextFile("/nowhere/text.txt"); });
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(missing.message(), "no such file: /nowhere/text.txt");
  EXPECT_EQ(ErrorOf([] { ReadTextFile("/tmp"); }).message(), "expected a text file, got a folder: /tmp");
  EXPECT_EQ(ErrorOf([] { ReadTextFile("/dev/null"); }).message(), "expected a regular file: /dev/null");
  const std::string empty = WriteFile("empty", "");
  EXPECT_EQ(ErrorOf([&] { ReadTextFile(empty); }).message(), "the file is empty: " + empty);
  EXPECT_EQ(ErrorOf([] { ReadTextFile(""); }).code(), absl::StatusCode::kNotFound);
}

// Its first byte belongs to no memory: the file ends nowhere, it cannot be read.
TEST(ReadTextFileTest, AReadThatFailsIsNoEnd) {
  EXPECT_EQ(ErrorOf([] { ReadTextFile("/proc/self/mem"); }).message(),
            "cannot read '/proc/self/mem': Input/output error");
}

TEST(SplitTokensTest, TheTailIsForValidation) {
  const std::vector<int32_t> tokens = Count(101);
  const TokenSplit split = SplitTokens(tokens, 0.1, 4);
  EXPECT_EQ(std::vector<int32_t>(split.train.begin(), split.train.end()), Count(91));
  ASSERT_EQ(split.validation.size(), 10u);
  EXPECT_EQ(split.validation.front(), 91);
  EXPECT_EQ(split.validation.back(), 100);
  EXPECT_EQ(split.train.data(), tokens.data()) << "a view, not a copy";
}

TEST(SplitTokensTest, FractionZeroKeepsAllForTraining) {
  const std::vector<int32_t> tokens = Count(5);
  const TokenSplit split = SplitTokens(tokens, 0, 4);
  EXPECT_EQ(split.train.size(), 5u);
  EXPECT_TRUE(split.validation.empty());
}

TEST(SplitTokensTest, EachPartMustHoldASample) {
  const std::vector<int32_t> tokens = Count(20);
  EXPECT_EQ(SplitTokens(tokens, 0.25, 4).validation.size(), 5u) << "exactly one sample fits";
  EXPECT_THAT(ErrorOf([&] { SplitTokens(tokens, 0.2, 4); }).message(),
              HasSubstr("its validation part has 4 tokens, and a sample of context 4 takes 5"));
  EXPECT_THAT(ErrorOf([&] { SplitTokens(tokens, 0.9, 4); }).message(),
              HasSubstr("its training part has 2 tokens"));
  EXPECT_THAT(ErrorOf([&] { SplitTokens({}, 0, 4); }).message(), HasSubstr("its training part has 0 tokens"));
}

TEST(SplitTokensTest, RefusesBadNumbers) {
  const std::vector<int32_t> tokens = Count(20);
  for (double fraction : {-0.1, 1.0, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(ErrorOf([&] { SplitTokens(tokens, fraction, 4); }).message(),
                HasSubstr("val_fraction: expected at least 0 and below 1"))
        << fraction;
  }
  EXPECT_THAT(ErrorOf([&] { SplitTokens(tokens, 0.5, 0); }).message(),
              HasSubstr("context: expected at least 1"));
}

}  // namespace
}  // namespace weft
