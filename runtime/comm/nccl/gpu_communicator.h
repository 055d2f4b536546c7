#ifndef WEFT_RUNTIME_COMM_NCCL_GPU_COMMUNICATOR_H_
#define WEFT_RUNTIME_COMM_NCCL_GPU_COMMUNICATOR_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/group_failure.h"
#include "runtime/comm/nccl/call_log.h"
#include "runtime/comm/nccl/hub.h"
#include "runtime/comm/nccl/judge.h"
#include "runtime/comm/nccl/meeting.h"
#include "runtime/comm/nccl/stream_work.h"
#include "runtime/device/cuda/allocator.h"
#include "runtime/device/cuda/stream.h"
#include "runtime/device/pooled_allocator.h"

namespace weft {

// What MakeNcclCommunicator makes. Its sources: gpu_communicator.cc puts operations into the stream,
// gpu_communicator_watch.cc takes note of what becomes of them and ends the group.
//
// Threads: operations by the rank's; the monitor's calls and those that end the group by any.
class GpuCommunicator final : public Communicator,
                              public NcclHub::Member,
                              public Ledger::Source,
                              public BlockObserver {
 public:
  GpuCommunicator(std::shared_ptr<NcclHub> hub, const std::string& name, const std::vector<int>& ranks,
                  int rank, Ledger* ledger)
      : Communicator(name, rank, ranks, ledger),
        hub_(std::move(hub)),
        cuda_(static_cast<CudaAllocator&>(*hub_->allocator())),
        token_(Tensor::Empty(hub_->allocator(), DType::kU8, {1})),
        meeting_(size() > 1 ? MeetNccl(*hub_, name, ranks, rank) : NcclMeeting()),
        judge_(*hub_, meeting_.prefix, name, ranks, rank) {
    token_is_free_.Record(cuda_.rank_stream());
  }

  ~GpuCommunicator() override;

  void Fail(absl::StatusCode code, const std::string& message) override { End(Error(code, message), true); }

  // Ledger::Source.
  void TellEnded() noexcept override;

  // BlockObserver. Waits until the group is idle, if the block is registered.
  void BlockGoes(const void* block) noexcept override;

  // NcclHub::Member.
  void Look(const NcclHub::Round& round) noexcept override;
  bool TryLeave() noexcept override;
  void Tell() noexcept override;
  void TellLast() override;
  bool idle() override;
  void AbortAll(const std::string& reason) override {
    End(Error(absl::StatusCode::kAborted, absl::StrCat("group '", name(), "': ", reason)), true);
  }
  void EndNow() noexcept override {
    End(Error(absl::StatusCode::kAborted,
              absl::StrCat("group '", name(), "': world rank ", ranks()[rank()], " has ended")),
        false);
  }
  void AwaitEnded() noexcept override;

 protected:
  void Admit(const Operation& operation) const override;
  Work Submit(Operation&& operation) override;
  bool in_stream() const override { return size() > 1; }

 private:
  // An operation in the stream, or on its way there; its tensors are its work's.
  struct Pending {
    Operation operation;
    std::chrono::milliseconds timeout;
    std::shared_ptr<CudaEvent> begun;  // the stream has come to it
    std::shared_ptr<CudaEvent> done;
    std::shared_ptr<StreamWork> work = nullptr;  // null unless somebody may wait for it
    std::vector<Tensor> tensors = {};            // the work's, once it has been cut off
    bool issued = false;
    int64_t begun_ns = 0;  // FlightClock, when it was seen that it has begun; 0: it was not
  };
  using Lock = std::unique_lock<std::mutex>;

  // Moves `operation`'s tensors out of it.
  static std::vector<Tensor> TakeTensors(Operation* operation);
  std::vector<CudaStreamRef> StreamsOf(const std::vector<Tensor>& tensors) const;

  Work SubmitAlone(const Operation& operation);
  Work SubmitStaged(const Operation& operation);
  // `operation` on new tensors of i64 of the same shapes.
  Operation Widened(const Operation& operation);
  // Puts the operation into the stream, between what its tensors' streams do before and, unless a work is
  // wanted, after. Returns the work, or null.
  std::shared_ptr<StreamWork> Issue(Operation&& operation, bool want_work);
  // `widened`: what NCCL is given instead of `operation`, if anything.
  void IssueCalls(Lock& lock, const Operation& operation, const std::optional<Operation>& widened,
                  const std::vector<CudaStreamRef>& streams);
  // Registers the memory that NCCL is about to be given for `operation`, if the options say so.
  void RegisterMemory(Lock& lock, const Operation& operation);
  // In the group's stream, whatever their dtypes; undefined tensors are passed over.
  void CopyInStream(const Tensor& from, const Tensor& to);
  void AwaitIssued(Lock& lock);
  // What ends the group, unless the monitor finds a better reason; the first stays. mutex_ held.
  void Suspect(Error error);
  // Returns when the group has ended for what is suspected: NCCL has let go of its operations. Lets go of mutex_ meanwhile.
  void AwaitEnd(Lock& lock);

  // The one source of an operation's times, for the ledger, the flight recorder and the judge alike. Reap
  // takes what is done out of pending_; NoteBegun notes that the oldest has begun, if it has. mutex_ held.
  void Reap();
  void NoteBegun();
  std::shared_ptr<CudaEvent> TakeEvent();
  // Ends the group, unless it has ended; `tell`: its members too.
  void End(Error error, bool tell) noexcept;
  // Takes all operations out of pending_ and has NCCL let go of them. mutex_ held.
  void EndOperations(const Error& error) noexcept;
  // NCCL has not let go yet. mutex_ held.
  bool is_ending() const { return failure_.failed() && !has_ended_; }
  // Returns when NCCL has let go of what has been cut off.
  void AbortCutOff() noexcept;
  // mutex_ held.
  void NoteEnded() noexcept;
  std::optional<NcclJudge::Late> OldestLate(int64_t now_ns);
  // With what the group ends that has been suspected for so long; nullopt while a better reason may come.
  std::optional<Error> ReasonOf(const Error& suspicion, std::chrono::milliseconds since, const CallLog& log);

  const std::shared_ptr<NcclHub> hub_;
  CudaAllocator& cuda_;  // the hub's
  const CudaStream stream_{CudaStream::Priority::kGreatest};
  CudaEvent ready_;
  const std::shared_ptr<StreamStalls> stalls_ = std::make_shared<StreamStalls>();
  const Tensor token_;       // what barriers reduce
  CudaEvent token_is_free_;  // what had its memory before is done with it
  NcclMeeting meeting_;
  NcclJudge judge_;  // the monitor's
  GroupFailure failure_;
  std::mutex tell_mutex_;   // held while the others are told; taken before mutex_
  std::mutex mutex_;        // of NCCL and all below
  bool has_ended_ = false;  // behind failure_: NCCL has let go
  std::condition_variable ended_;
  std::deque<Pending> cut_off_;  // between the two the ender's alone
  std::thread ender_;
  std::deque<Pending> pending_;
  std::vector<std::shared_ptr<CudaEvent>> free_events_;
  CallLog log_;
  std::optional<Error> to_tell_;
  std::optional<Error> suspicion_;  // what NCCL says of a peer, or the device of itself
  int64_t suspected_ns_ = 0;
  // Tensors of operations that have failed, until nothing touches them.
  std::vector<std::pair<std::shared_ptr<CudaEvent>, std::vector<Tensor>>> draining_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_GPU_COMMUNICATOR_H_
