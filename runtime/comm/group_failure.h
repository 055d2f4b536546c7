#ifndef WEFT_RUNTIME_COMM_GROUP_FAILURE_H_
#define WEFT_RUNTIME_COMM_GROUP_FAILURE_H_

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/base/error.h"

namespace weft {

// The error that has ended a group, once there is one. The first stays.
//
// Threads: any. `failed` is one sequentially consistent load, so it may stand in a WaitPoint's condition.
class GroupFailure {
 public:
  // Returns true if this call has ended the group, false if it had ended.
  bool Set(absl::StatusCode code, const std::string& message);

  bool failed() const { return failed_.load(); }
  void ThrowIfFailed() const {
    if (failed()) Throw();
  }
  // Precondition: failed.
  [[noreturn]] void Throw() const;

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::optional<Error> error_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GROUP_FAILURE_H_
