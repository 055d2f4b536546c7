#ifndef WEFT_TESTS_MESSAGE_OF_H_
#define WEFT_TESTS_MESSAGE_OF_H_

#include <string>

#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {

// The message of the Error that `function` throws, or "no error".
template <class Function>
std::string MessageOf(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

// The same, of an Error that must be an InvalidArgument.
template <class Function>
std::string InvalidArgumentMessage(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    return error.message();
  }
  return "no error";
}

}  // namespace weft

#endif  // WEFT_TESTS_MESSAGE_OF_H_
