#include "runtime/comm/worker_pool.h"

#include "runtime/base/error.h"

namespace weft {

std::shared_ptr<Worker> WorkerPool::Start() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (finished_) Throw(absl::StatusCode::kFailedPrecondition, "this rank has ended");
  // Programs that make many communicators must not collect dead threads.
  std::erase_if(workers_, [](const std::shared_ptr<Worker>& old) { return old->ended(); });
  workers_.push_back(std::make_shared<Worker>());
  return workers_.back();
}

void WorkerPool::Finish() {
  std::vector<std::shared_ptr<Worker>> workers;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    workers.swap(workers_);
    finished_ = true;
  }
  for (const std::shared_ptr<Worker>& worker : workers) worker->Close();
  for (const std::shared_ptr<Worker>& worker : workers) worker->Join();
}

}  // namespace weft
