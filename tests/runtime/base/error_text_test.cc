#include "runtime/base/error_text.h"

#include <exception>
#include <new>
#include <optional>
#include <stdexcept>

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

TEST(ErrorTextTest, WhateverIsThrownIsAnError) {
  const auto told = [](const std::exception_ptr& thrown) {
    const Error error = AsError(thrown);
    return ErrorText(error.code(), error.message());
  };
  EXPECT_EQ(told(std::make_exception_ptr(Error(absl::StatusCode::kDataLoss, "cut short"))), "15 cut short");
  EXPECT_EQ(told(std::make_exception_ptr(std::bad_alloc())), "8 no memory");
  EXPECT_EQ(told(std::make_exception_ptr(std::runtime_error("of a library"))), "13 of a library");
  EXPECT_EQ(told(std::make_exception_ptr(7)), "13 what was thrown is no exception of a known type");
}

}  // namespace
}  // namespace weft
