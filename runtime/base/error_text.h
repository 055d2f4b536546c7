#ifndef WEFT_RUNTIME_BASE_ERROR_TEXT_H_
#define WEFT_RUNTIME_BASE_ERROR_TEXT_H_

#include <exception>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/base/error.h"

namespace weft {

// An error as a text by which another rank learns of it: "9 the disk is full", its code and its message.
std::string ErrorText(absl::StatusCode code, absl::string_view message);

// The inverse; nullopt for what is none.
std::optional<Error> ErrorFromText(absl::string_view text);

// What has been thrown, as an Error: the Error that it is; ResourceExhausted for std::bad_alloc; otherwise Internal, with its text
// if it is a std::exception. `thrown` is not null.
Error AsError(const std::exception_ptr& thrown);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_ERROR_TEXT_H_
