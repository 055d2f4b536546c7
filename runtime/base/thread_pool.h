#ifndef WEFT_RUNTIME_BASE_THREAD_POOL_H_
#define WEFT_RUNTIME_BASE_THREAD_POOL_H_

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"

namespace weft {

// A fixed set of threads that run the tasks of one call at a time; the caller works too. Each rank has one.
//
// Waiting workers spin briefly, then yield, then block, so that ranks that outnumber cores do not collapse.
// Every thread calls omp_set_num_threads(1) once: oneDNN is entered single-threaded.
//
// Threads: Run is called from the owning rank's thread only, and never from inside a task.
class ThreadPool {
 public:
  // `num_threads` includes the caller; 1 makes every Run inline.
  // Errors: InvalidArgument if below 1; ResourceExhausted if the system gives no more threads.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls `task(i)` once for every i in [0, num_tasks) and returns when all are done. Which thread runs which
  // task is not defined: for results that do not depend on the thread count, cut the work by its shape alone.
  // Errors: the first exception of a task is rethrown here, after the running ones have ended; tasks not yet
  //         started are dropped. FailedPrecondition if a Run is in progress (a task entered its own pool).
  void Run(int64_t num_tasks, absl::FunctionRef<void(int64_t task)> task);

  // Cuts [0, n) into pieces of `grain` (the last may be shorter) and calls `body(begin, end)` for each.
  // The cut depends on n and grain only.
  void ParallelFor(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t begin, int64_t end)> body);

 private:
  struct State;
  int num_threads_;
  std::unique_ptr<State> state_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_THREAD_POOL_H_
