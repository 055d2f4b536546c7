#ifndef WEFT_RUNTIME_COMM_NCCL_COMM_H_
#define WEFT_RUNTIME_COMM_NCCL_COMM_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/node_hash_map.h"
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

  // Registers a block of memory that operations to come use, but for one that is registered, or that NCCL has refused before.
  // Returns whether NCCL was asked: then Poll tells when it is through.
  // Errors: NCCL's, which has refused the block.
  bool Register(void* block, int64_t num_bytes);

  // Whether Register has been called with the block and TryDeregister has not been through with it since. While another thread
  // may be in Abort it can be asked all the same.
  bool Knows(const void* block) const { return registrations_.contains(block); }

  // Takes the registration of a block back that no operation under way uses, a step a call: true once NCCL has none, as after
  // Abort. It stays false after an error of NCCL's, by which its owner aborts this.
  bool TryDeregister(const void* block) noexcept;

  // Leaves in order, a step a call: true once it has left. Takes registrations back first. Other members have to leave too.
  bool TryLeave() noexcept;

  // Ends it at once: what is in the stream ends with it, here, and so do registrations. Once is enough.
  void Abort() noexcept;

 private:
  struct Registration {
    void* handle = nullptr;
    bool is_refused = false;
    bool is_leaving = false;  // NCCL has been told to forget it
  };

  [[noreturn]] void Throw(NcclResult result, const char* call) const;
  // How NCCL is getting on with what it was last asked for.
  NcclResult State() const noexcept;

  const std::shared_ptr<NcclApi> api_;
  NcclHandle handle_ = nullptr;  // null once it has ended
  bool is_leaving_ = false;
  absl::node_hash_map<const void*, Registration> registrations_;  // NCCL may write a handle later
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_COMM_H_
