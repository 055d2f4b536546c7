#include "runtime/base/error_text.h"

#include <optional>

#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

TEST(ErrorTextTest, GoesThereAndBack) {
  for (const char* const message : {"the disk is full", "two\nlines", "", " blank"}) {
    const std::optional<Error> error =
        ErrorFromText(ErrorText(absl::StatusCode::kFailedPrecondition, message));
    ASSERT_TRUE(error.has_value()) << message;
    EXPECT_EQ(error->code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(error->message(), message);
  }
}

TEST(ErrorTextTest, WhatIsNoErrorIsNone) {
  for (const char* const text : {"", "ok", "9", "the disk is full", " 9"}) {
    EXPECT_FALSE(ErrorFromText(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace weft
