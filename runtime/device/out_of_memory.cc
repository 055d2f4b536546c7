#include "runtime/device/out_of_memory.h"

#include <new>

#include "absl/strings/match.h"
#include "runtime/base/error.h"

namespace weft {

bool IsOutOfMemory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  const auto* const told = dynamic_cast<const Error*>(&error);
  return told != nullptr && told->code() == absl::StatusCode::kResourceExhausted &&
         absl::StrContains(told->message(), "out of memory on ");
}

}  // namespace weft
