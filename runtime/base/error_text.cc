#include "runtime/base/error_text.h"

#include <new>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace weft {

std::string ErrorText(absl::StatusCode code, absl::string_view message) {
  return absl::StrCat(static_cast<int>(code), " ", message);
}

std::optional<Error> ErrorFromText(absl::string_view text) {
  const size_t blank = text.find(' ');
  int code = 0;
  if (blank == absl::string_view::npos || !absl::SimpleAtoi(text.substr(0, blank), &code))
    return std::nullopt;
  return Error(static_cast<absl::StatusCode>(code), std::string(text.substr(blank + 1)));
}

Error AsError(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(absl::StatusCode::kResourceExhausted, "no memory");
  } catch (const std::exception& error) {
    return Error(absl::StatusCode::kInternal, error.what());
  } catch (...) {
    return Error(absl::StatusCode::kInternal, "what was thrown is no exception of a known type");
  }
}

}  // namespace weft
