#ifndef WEFT_TESTS_RUNTIME_COMM_NCCL_FAKE_API_H_
#define WEFT_TESTS_RUNTIME_COMM_NCCL_FAKE_API_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/nccl/nccl_api.h"

namespace weft {

// NCCL for ranks that are threads of this process, on emulated GPUs (tests/cuda_emulator): moves the data, in
// stream order, when the streams of all members have come to an operation; never ends one whose members
// disagree, or one member of which does not come.
//
// It answers kInProgress for a while before it has done anything, and to the first message of a direction until both ends
// have come to it: NCCL connects them then. It refuses what NCCL calls invalid usage:
// a call before the one before it is through, two members on one GPU. Sums go around a ring that starts
// elsewhere for each chunk, rounded at every step, and nan loses in min and max: so that what relies on more
// than NCCL promises fails here too.
class FakeNccl final : public NcclApi {
 public:
  // The next call of that name by that member of any communicator answers `result` and does nothing.
  void FailNext(const std::string& call, int rank, NcclResult result);
  // From now on that member's communicators have this asynchronous error.
  void SetAsyncError(int rank, NcclResult result);
  // That member's communicators never connect.
  void HoldConnecting(int rank);
  // Whether members hear of another's abort, as by a broken connection. By default they do not.
  void set_aborts_are_heard(bool heard);

  // While aborts are held none takes place, and its caller waits. How many have been held so far.
  void HoldAborts(bool hold);
  int64_t NumHeldAborts();

  // Communicators that have been made and neither destroyed nor aborted, and how many were aborted.
  int64_t NumLive();
  int64_t NumAborted();

  // Registrations that have been made, and those that their owner has taken back. A call of either is through some time later.
  int64_t NumRegistrations();
  int64_t NumDeregistrations();
  // What NCCL forbids or gives no meaning to, and was done all the same: memory registered twice, or on some members of a call
  // alone; taken back from a communicator that it was not registered with, or while an operation uses it; left at the end; given
  // back to the device while it is registered.
  std::vector<std::string> Misuses();
  // The device has taken memory back.
  void NoteFreed(const void* data);

  NcclResult GetUniqueId(NcclId* id) override;
  NcclResult CommInitRank(NcclHandle* comm, int size, const NcclId& id, int rank,
                          const std::string& name) override;
  NcclResult CommGetAsyncError(NcclHandle comm, NcclResult* error) override;
  NcclResult CommFinalize(NcclHandle comm) override;
  NcclResult CommDestroy(NcclHandle comm) override;
  NcclResult CommAbort(NcclHandle comm) override;
  NcclResult CommRegister(NcclHandle comm, void* data, int64_t num_bytes, void** registration) override;
  NcclResult CommDeregister(NcclHandle comm, void* registration) override;
  std::string GetErrorString(NcclResult result) override;
  std::string GetLastError(NcclHandle comm) override;
  NcclResult AllReduce(const void* input, void* output, int64_t count, NcclType type, NcclOp op,
                       NcclHandle comm, cudaStream_t stream) override;
  NcclResult Broadcast(const void* input, void* output, int64_t count, NcclType type, int root,
                       NcclHandle comm, cudaStream_t stream) override;
  NcclResult Reduce(const void* input, void* output, int64_t count, NcclType type, NcclOp op, int root,
                    NcclHandle comm, cudaStream_t stream) override;
  NcclResult AllGather(const void* input, void* output, int64_t count, NcclType type, NcclHandle comm,
                       cudaStream_t stream) override;
  NcclResult ReduceScatter(const void* input, void* output, int64_t count, NcclType type, NcclOp op,
                           NcclHandle comm, cudaStream_t stream) override;
  NcclResult Send(const void* input, int64_t count, NcclType type, int peer, NcclHandle comm,
                  cudaStream_t stream) override;
  NcclResult Recv(void* output, int64_t count, NcclType type, int peer, NcclHandle comm,
                  cudaStream_t stream) override;
  NcclResult GroupStart() override;
  NcclResult GroupEnd() override;

  // What one member calls.
  enum class Kind { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kSend, kRecv };
  struct Call {
    Kind kind = Kind::kSend;
    const void* input = nullptr;
    void* output = nullptr;
    int64_t count = 0;
    NcclType type = NcclType::kUint8;
    NcclOp op = NcclOp::kSum;
    int peer = 0;  // or root
  };

 private:
  struct Clique;
  struct Comm;
  struct Operation;
  struct Memory {
    const char* begin = nullptr;
    int64_t num_bytes = 0;

    bool Holds(const void* data) const {
      const auto* const at = static_cast<const char*>(data);
      return at >= begin && at < begin + num_bytes;
    }
  };
  struct Group {
    int depth = 0;
    Comm* comm = nullptr;
    cudaStream_t stream = nullptr;
    std::vector<Call> calls;
  };

  static Comm* Find(NcclHandle handle) { return reinterpret_cast<Comm*>(handle); }
  // True once if the call was to fail.
  bool Fails(const std::string& call, int rank, NcclResult* result);
  NcclResult Add(const char* name, const Call& call, NcclHandle handle, cudaStream_t stream);
  // Whether all memory of the call is registered. Notes where a part of it is.
  bool IsRegistered(const Comm& comm, const Call& call);
  // True if the operation is over; the stream has come to it.
  bool TryFinish(Operation& operation);

  std::mutex mutex_;  // of all; never held while the emulator is called, which calls TryFinish
  int64_t next_id_ = 0;
  std::map<std::string, std::shared_ptr<Clique>> cliques_;
  std::map<Comm*, std::shared_ptr<Comm>> comms_;
  std::map<std::pair<std::string, int>, NcclResult> failures_;
  std::map<int, NcclResult> async_errors_;
  std::set<int> held_;
  std::map<std::thread::id, Group> groups_;
  bool aborts_are_heard_ = false;
  bool aborts_are_held_ = false;
  int64_t num_held_aborts_ = 0;
  std::condition_variable let_go_;  // of aborts
  int64_t num_aborted_ = 0;
  int64_t num_registrations_ = 0;
  int64_t num_deregistrations_ = 0;
  uintptr_t next_registration_ = 0;
  std::vector<std::string> misuses_;
};

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_COMM_NCCL_FAKE_API_H_
