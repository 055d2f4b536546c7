#ifndef WEFT_RUNTIME_BASE_ERROR_TEXT_H_
#define WEFT_RUNTIME_BASE_ERROR_TEXT_H_

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

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_ERROR_TEXT_H_
