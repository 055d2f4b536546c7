#ifndef WEFT_RUNTIME_COMM_WORKER_H_
#define WEFT_RUNTIME_COMM_WORKER_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "runtime/comm/peer_wait_clock.h"
#include "runtime/comm/work.h"
#include "runtime/comm/work_state.h"

namespace weft {

// A thread that runs one communicator's asynchronous operations, in order.
//
// Lifetime: shared by the communicator, which closes it, and the rank's WorkerPool, which joins it: so a
//           communicator may die with work in flight, from that very work too, and nobody waits in a
//           destructor.
// Threads:  any, but Join is for one thread, which is not the worker.
class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Queues `task`. An exception from it is the Work's error.
  // Errors: FailedPrecondition after Close.
  Work Submit(absl::AnyInvocable<void()> task);

  // True if nothing is queued or running; all that the tasks wrote is seen then.
  bool idle() const { return num_pending_.load() == 0; }
  void WaitIdle();

  // What its collectives wait for other members.
  PeerWaitClock& peer_waits() { return peer_waits_; }

  // Takes no more tasks. The thread ends after those it has.
  void Close() noexcept;
  void Join();
  bool ended() const { return ended_.load(); }

 private:
  struct Task {
    absl::AnyInvocable<void()> run;
    std::shared_ptr<HostWorkState> state;
  };

  void Loop();
  void Execute(Task task);

  std::mutex mutex_;
  std::condition_variable wake_;  // of the thread: a task, or closed
  std::condition_variable idle_;  // of WaitIdle
  std::deque<Task> tasks_;
  bool closed_ = false;
  std::atomic<int> num_pending_ = 0;
  std::atomic<bool> ended_ = false;
  PeerWaitClock peer_waits_;
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_WORKER_H_
