#include "runtime/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(Error, CarriesCodeAndJoinedMessage) {
  try {
    Throw(absl::StatusCode::kNotFound, "no axis '", "dp", "' among ", 3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(error.message(), "no axis 'dp' among 3");
    EXPECT_STREQ(error.what(), "no axis 'dp' among 3");
  }
}

TEST(Error, RequireThrowsInvalidArgumentAndEvaluatesPartsOnlyThen) {
  int evaluated = 0;
  const auto part = [&] { return ++evaluated; };
  WEFT_REQUIRE(true, part());
  EXPECT_EQ(evaluated, 0);
  try {
    WEFT_REQUIRE(1 + 1 == 3, "part ", part());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(error.message(), "part 1");
  }
}

TEST(Error, CheckNamesFileAndCondition) {
  try {
    WEFT_CHECK(2 < 1, "broken ", 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("error_test.cc:"), HasSubstr("2 < 1"), EndsWith("broken 7")));
  }
}

}  // namespace
}  // namespace weft
