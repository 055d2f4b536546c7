#include "runtime/comm/mpi/leftovers.h"

#include <utility>

#include "runtime/base/error.h"

namespace weft {

void MpiLeftovers::Keep(std::unique_ptr<MpiLeftover> leftover) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.push_back(std::move(leftover));
}

void MpiLeftovers::RecordFailure(const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.empty()) failure_ = message;
}

std::string MpiLeftovers::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

std::vector<std::string> MpiLeftovers::Pending() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(kept_, [](const std::unique_ptr<MpiLeftover>& leftover) {
    try {
      return leftover->Done();
    } catch (const Error&) {
      return false;  // MPI's own failure: what it still does is not known
    }
  });
  std::vector<std::string> pending;
  for (const auto& leftover : kept_) pending.push_back(leftover->What());
  return pending;
}

}  // namespace weft
