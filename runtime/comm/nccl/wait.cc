#include "runtime/comm/nccl/wait.h"

#include <algorithm>
#include <utility>

namespace weft {

bool NcclWait::Done() {
  if (lost_.has_value()) {
    if (std::chrono::steady_clock::now() - lost_at_ > NcclComm::kReasonTakes) throw Error(*lost_);
    return false;
  }
  try {
    return comm_.Poll();
  } catch (const Error& error) {
    if (error.code() != absl::StatusCode::kAborted) throw;
    lost_ = error;
    lost_at_ = std::chrono::steady_clock::now();
    return false;
  }
}

std::chrono::microseconds NcclWait::NextPause() {
  return std::exchange(pause_, std::min(2 * pause_, longest_));
}

}  // namespace weft
