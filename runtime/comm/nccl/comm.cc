#include "runtime/comm/nccl/comm.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

absl::StatusCode CodeOf(NcclResult result) {
  switch (result) {
    case NcclResult::kRemoteError:
    case NcclResult::kSystemError:
      return absl::StatusCode::kAborted;
    case NcclResult::kInvalidUsage:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

void ThrowNccl(NcclApi& api, NcclHandle comm, NcclResult result, const std::string& call) {
  const std::string last = api.GetLastError(comm);
  weft::Throw(CodeOf(result), "NCCL: ", call, ": ", api.GetErrorString(result), last.empty() ? "" : ": ",
              last);
}

NcclComm::NcclComm(std::shared_ptr<NcclApi> api, int size, const NcclId& id, int rank,
                   const std::string& name)
    : api_(std::move(api)) {
  const NcclResult result = api_->CommInitRank(&handle_, size, id, rank, name);
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return;
  const NcclHandle failed = std::exchange(handle_, nullptr);
  try {
    ThrowNccl(*api_, failed, result, "ncclCommInitRankConfig");
  } catch (...) {
    if (failed != nullptr) api_->CommAbort(failed);
    throw;
  }
}

void NcclComm::Throw(NcclResult result, const char* call) const { ThrowNccl(*api_, handle_, result, call); }

bool NcclComm::Poll() const {
  NcclResult state = NcclResult::kSuccess;
  Check(api_->CommGetAsyncError(handle_, &state), "ncclCommGetAsyncError");
  if (state == NcclResult::kInProgress) return false;
  Check(state, "an asynchronous error");
  return true;
}

void NcclComm::Group(absl::FunctionRef<void()> issue) const {
  Check(api_->GroupStart(), "ncclGroupStart");
  try {
    issue();
  } catch (...) {
    api_->GroupEnd();  // the thread's group is open, whatever went wrong
    throw;
  }
  Check(api_->GroupEnd(), "ncclGroupEnd");
}

NcclResult NcclComm::State() const noexcept {
  NcclResult state = NcclResult::kSuccess;
  const NcclResult result = api_->CommGetAsyncError(handle_, &state);
  return result == NcclResult::kSuccess ? state : NcclResult::kInternalError;
}

bool NcclComm::Register(void* block, int64_t num_bytes) {
  const auto [found, is_new] = registrations_.try_emplace(block);
  if (!is_new) return false;
  const NcclResult result = api_->CommRegister(handle_, block, num_bytes, &found->second.handle);
  found->second.is_refused = result != NcclResult::kSuccess && result != NcclResult::kInProgress;
  if (found->second.is_refused) Throw(result, "ncclCommRegister");
  return true;
}

bool NcclComm::TryDeregister(const void* block) noexcept {
  const auto found = registrations_.find(block);
  if (handle_ == nullptr || found == registrations_.end()) return true;
  // NCCL takes a call when it is through with the one before it.
  if (State() != NcclResult::kSuccess) return false;
  Registration& registration = found->second;
  if (!registration.is_refused && !registration.is_leaving) {
    registration.is_leaving = true;
    if (api_->CommDeregister(handle_, registration.handle) == NcclResult::kInProgress) return false;
  }
  registrations_.erase(found);
  return true;
}

bool NcclComm::TryLeave() noexcept {
  if (handle_ == nullptr) return true;
  while (!registrations_.empty()) {
    if (TryDeregister(registrations_.begin()->first)) continue;
    const NcclResult state = State();
    if (state == NcclResult::kSuccess || state == NcclResult::kInProgress) return false;
    Abort();
    return true;
  }
  if (!is_leaving_) {
    is_leaving_ = true;
    const NcclResult result = api_->CommFinalize(handle_);
    if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
      Abort();
      return true;
    }
  }
  const NcclResult state = State();
  if (state == NcclResult::kInProgress) return false;
  if (state == NcclResult::kSuccess) {
    api_->CommDestroy(std::exchange(handle_, nullptr));
  } else {
    Abort();
  }
  return true;
}

void NcclComm::Abort() noexcept {
  if (handle_ != nullptr) api_->CommAbort(std::exchange(handle_, nullptr));
}

}  // namespace weft
