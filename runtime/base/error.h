#ifndef WEFT_RUNTIME_BASE_ERROR_H_
#define WEFT_RUNTIME_BASE_ERROR_H_

#include <exception>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weft {

// The one exception that Weft throws: a code that a program can act on, and a message for a person that
// names what was given, what was expected, and where it helps the nearest legal alternative.
//
// Codes: InvalidArgument (misuse), FailedPrecondition (right call, wrong time), DeadlineExceeded (a peer is
// missing), Aborted (a peer failed), NotFound, DataLoss (a broken file), ResourceExhausted (out of memory),
// Unimplemented (no kernel), Internal (a defect in Weft).
class Error : public std::exception {
 public:
  Error(absl::StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  absl::StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  absl::StatusCode code_;
  std::string message_;
};

// Throws an Error whose message is `parts` joined as by absl::StrCat.
template <class... Parts>
[[noreturn]] void Throw(absl::StatusCode code, const Parts&... parts) {
  throw Error(code, absl::StrCat(parts...));
}

template <class... Parts>
[[noreturn]] void ThrowInvalidArgument(const Parts&... parts) {
  Throw(absl::StatusCode::kInvalidArgument, parts...);
}

}  // namespace weft

// Throws InvalidArgument with the message parts unless `condition` holds: for what a caller can get wrong.
// The parts are evaluated only on failure.
#define WEFT_REQUIRE(condition, ...)                                  \
  do {                                                                \
    if (!(condition)) [[unlikely]] {                                  \
      ::weft::Throw(absl::StatusCode::kInvalidArgument, __VA_ARGS__); \
    }                                                                 \
  } while (false)

// Throws Internal unless `condition` holds: for what only a defect in Weft can break.
#define WEFT_CHECK(condition, ...)                                                                \
  do {                                                                                            \
    if (!(condition)) [[unlikely]] {                                                              \
      ::weft::Throw(absl::StatusCode::kInternal, __FILE__, ":", __LINE__, ": ", #condition, ": ", \
                    __VA_ARGS__);                                                                 \
    }                                                                                             \
  } while (false)

#endif  // WEFT_RUNTIME_BASE_ERROR_H_
