#ifndef WEFT_RUNTIME_COMM_WORKER_POOL_H_
#define WEFT_RUNTIME_COMM_WORKER_POOL_H_

#include <memory>
#include <mutex>
#include <vector>

#include "runtime/comm/worker.h"

namespace weft {

// The worker threads of one rank's communicators. Communicators come and go with work in flight; this
// outlives them and joins what they have started.
//
// Threads: any.
class WorkerPool {
 public:
  WorkerPool() = default;
  ~WorkerPool() { Finish(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // A thread for one communicator.
  // Errors: FailedPrecondition after Finish.
  std::shared_ptr<Worker> Start();

  // Runs what the workers still have to the end and joins them; none starts any more. By one thread, which is
  // no worker.
  void Finish();

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Worker>> workers_;
  bool finished_ = false;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_WORKER_POOL_H_
