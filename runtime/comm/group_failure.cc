#include "runtime/comm/group_failure.h"

namespace weft {

bool GroupFailure::Set(absl::StatusCode code, const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_.has_value()) return false;
  error_.emplace(code, message);
  failed_.store(true);
  return true;
}

void GroupFailure::Throw() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  throw Error(*error_);
}

}  // namespace weft
