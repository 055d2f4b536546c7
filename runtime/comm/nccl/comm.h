#ifndef WEFT_RUNTIME_COMM_NCCL_COMM_H_
#define WEFT_RUNTIME_COMM_NCCL_COMM_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "runtime/comm/nccl/nccl_api.h"

namespace weft {

// Throws what NCCL answered: the call, NCCL's text and its last error.
// Errors: Aborted for a peer or the network; InvalidArgument for what NCCL calls invalid usage (two ranks on
//         one GPU); Internal for others.
[[noreturn]] void ThrowNccl(NcclApi& api, NcclHandle comm, NcclResult result, const std::string& call);

// A communicator of NCCL. Owns it.
//
// Threads: one at a time.
class NcclComm {
 public:
  // A member that hears from NCCL that a peer is gone waits this long for a peer to say why.
  static constexpr std::chrono::seconds kReasonTakes{1};

  // Begins to make it; does not wait for the other members.
  // Errors: as ThrowNccl.
  NcclComm(std::shared_ptr<NcclApi> api, int size, const NcclId& id, int rank, const std::string& name);
  ~NcclComm() { Abort(); }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  NcclApi& api() const { return *api_; }
  NcclHandle handle() const { return handle_; }

  // True if NCCL has done what it was last asked for: made the communicator, put the operation into its
  // stream.
  // Errors: NCCL's, of that or of anything since.
  bool Poll() const;

  // Issues the calls of `issue`, which Check their results, as one.
  // Errors: NCCL's. Poll tells when it is in the stream.
  void Group(absl::FunctionRef<void()> issue) const;
  void Check(NcclResult result, const char* call) const {
    if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) Throw(result, call);
  }

  // Leaves in order, a step a call: true once it has left. Other members have to leave too.
  bool TryLeave() noexcept;

  // Ends it at once: what is in the stream ends with it, here. Once is enough.
  void Abort() noexcept;

 private:
  [[noreturn]] void Throw(NcclResult result, const char* call) const;

  const std::shared_ptr<NcclApi> api_;
  NcclHandle handle_ = nullptr;  // null once it has ended
  bool is_leaving_ = false;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_COMM_H_
