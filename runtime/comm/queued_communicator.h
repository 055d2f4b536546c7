#ifndef WEFT_RUNTIME_COMM_QUEUED_COMMUNICATOR_H_
#define WEFT_RUNTIME_COMM_QUEUED_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/link_turns.h"
#include "runtime/comm/worker_pool.h"

namespace weft {

// What the backends that move CPU tensors share: a group's operations run one at a time in the order issued,
// blocking ones on the caller's thread, asynchronous ones on a worker that the first of them starts; and an
// operation that throws ends the group. A backend adds how one operation is run.
//
// Tensors of other devices go through the CPU, in the order of the rank's own work at the time of the copy:
// Cost:   a copy there and back, and the wait for what computes them. So ranks that share a GPU, or have no
//         NCCL between them, run too.
//
// Lifetime: always in a shared_ptr. Queued operations share it, so it lives until the last of them is done,
//           whatever its user does; the rank's WorkerPool runs them to the end.
class QueuedCommunicator : public Communicator, public std::enable_shared_from_this<QueuedCommunicator> {
 public:
  ~QueuedCommunicator() override;

  // As the function of this name.
  void TakeTurns(std::shared_ptr<LinkTurns> turns, int priority) {
    turns_ = std::move(turns);
    priority_ = priority;
  }

 protected:
  // `ledger` may be null; it and `workers` outlive the communicator and all of its work.
  QueuedCommunicator(const std::string& name, int rank, const std::vector<int>& ranks, Ledger* ledger,
                     WorkerPool* workers)
      : Communicator(name, rank, ranks, ledger), workers_(workers) {}

  // Takes this member through `call` to its end. Whatever it throws ends the group.
  virtual void Run(const CollectiveCall& call) = 0;
  virtual void Run(const SendRecvCall& call) = 0;

  // The same for a list of all-reduces, all-gathers or reduce-scatters of one dtype, of which `list` says what
  // members must agree on. Unless a backend knows better: small parts are packed into one, since each costs a
  // meeting of all members; then one after another.
  virtual void RunEach(const CollectiveDescriptor& list, absl::Span<const CollectiveCall> calls);

  // What its bytes go by; of a backend that cannot tell, all.
  virtual uint32_t links() const { return kEveryLink; }

  // Of memory that operations need for as long as they run.
  const std::shared_ptr<Allocator>& host_allocator();

  // Throws what has ended the group, if it has ended.
  virtual void ThrowIfFailed() const = 0;

  // Throws what has ended the group, once the tensors of the failed operation may be freed: no peer and no
  // transport touches them any more.
  [[noreturn]] virtual void Leave() = 0;

  // Calls `run`. If it throws, ends the group and leaves it: copies around the call, which peers and transports may touch
  // as they touch the operation's own tensors, are freed behind that.
  template <class Function>
  void RunOrLeave(const Function& run) {
    try {
      run();
    } catch (const std::exception& error) {
      EndFor(error);
      Leave();
    }
  }

 private:
  void Admit(const Operation& operation) const final;
  Work Submit(Operation&& operation) final;
  // Returns when it has ended (FlightClock).
  int64_t RunNow(const Operation& operation, int64_t begun_ns, std::chrono::milliseconds timeout,
                 std::atomic<int64_t>* all_entered_ns);
  void RunOnWorker(const Operation& operation, std::chrono::milliseconds timeout, PeerWaitClock& waits);
  void EndFor(const std::exception& error);
  void RequireMemory(CollectiveKind kind, const Tensor& tensor) const;
  bool IsStaged(const Operation& operation) const;
  // What is to hand while an operation runs.
  struct Running {
    std::chrono::milliseconds timeout;
    std::atomic<int64_t>* all_entered_ns = nullptr;
    LinkTurns::Turn* turn = nullptr;  // null: it takes none
  };
  void RunHere(const Operation& operation, const Running& running);
  void RunStaged(const Operation& operation, const Running& running);

  WorkerPool* const workers_;
  std::shared_ptr<Allocator> host_allocator_;  // null until it is needed
  std::shared_ptr<Worker> worker_;             // null until the first asynchronous operation
  Worker* given_worker_ = nullptr;             // that callers have given with operations
  std::shared_ptr<LinkTurns> turns_;           // null: nobody has said
  int priority_ = 0;
};

// Whether threads of the host run its operations, as a QueuedCommunicator's: on tensors of another device not in its order, but
// when the host comes to them.
bool RunsOnHost(const Communicator& group);

// Before the first operation: the group's operations take turns with those of this rank's other groups that are given the
// same `turns`, once these are on. Where the higher priority goes first: `local` (all but messages), `gloo` (the same by
// shared memory; by TCP reductions and broadcasts of more than 16 MiB: what a gather is to receive is asked for at once) and
// `mpi` (reductions: the rest is one call of MPI). Everything of higher priority is gone before, cut or not. NCCL cuts its
// operations itself: there it does nothing.
void TakeTurns(Communicator& group, std::shared_ptr<LinkTurns> turns, int priority);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_QUEUED_COMMUNICATOR_H_
