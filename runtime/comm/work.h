#ifndef WEFT_RUNTIME_COMM_WORK_H_
#define WEFT_RUNTIME_COMM_WORK_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"

namespace weft {

class FlightRecorder;

// The state of one asynchronous collective, set once by the backend that runs it.
class WorkState;

// A handle to a collective that may still be running; copies share it. It owns references to every buffer
// that the collective touches until all members have finished with them.
//
// Dropping a Work neither waits nor throws: an error nobody read surfaces at the next call on that group.
class Work {
 public:
  // A finished one.
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  // True when it has finished, well or badly. Never blocks, never throws.
  bool Test() const;

  // Blocks until it has finished; the flight recorder knows meanwhile that the rank's thread waits for it. Of an
  // operation on GPU memory that NCCL runs, the host does not wait: what is issued to the tensors' streams from now
  // on does, and the errors are those that are known by now.
  // Errors:  the collective's own (DeadlineExceeded names the missing ranks; Aborted the peer that failed;
  //          InvalidArgument both sides of a disagreement).
  // Threads: the rank's.
  void Wait() const;

  // The same on a thread that is not the rank's, such as a worker: the flight recorder is not told, since what it
  // knows is what the rank's own thread waits for.
  void WaitOnWorker() const;

  // Blocks the host until it has finished, on every device; returns false if it is still running after
  // `timeout`.
  bool WaitFor(std::chrono::milliseconds timeout) const;

  // Waits for all, one after another, which are of one queue: a task that is no operation counts as waiting for the
  // operation that it belongs to, the next one in the list or else the last.
  // Errors: those of the first that has one.
  static void WaitInOrder(absl::Span<const Work> works);

  // What the rank's thread is to do once it has finished, such as unpacking: `f` runs once, in the first Test, Wait, WaitFor
  // or WaitInOrder of what is returned that finds it finished. On a GPU a Wait that lets the host go on counts: `f` issues
  // work behind it. What is returned has finished when this work and `f` have; it may have a continuation too. This work and
  // its other copies know nothing of `f`. Nobody polls: it does not run. WaitOnWorker does not wait for it: what other
  // threads wait for is the operation.
  //
  // `f` issues nothing: no operation of a communicator, no task of a worker. When it runs depends on what has arrived, and
  // ranks would issue in different orders.
  // Errors: of what is returned, each time: this work's, and `f` does not run; otherwise what `f` has thrown.
  Work Then(absl::AnyInvocable<void()> f) const;

  // Which operation it is: for communicators.
  void SetOperation(FlightRecorder* recorder, uint64_t flight_id) const;

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_WORK_H_
