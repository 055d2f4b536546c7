#include "runtime/comm/worker.h"

#include <exception>
#include <optional>
#include <utility>

#include "runtime/base/error.h"

namespace weft {

Worker::Worker() : thread_([this] { Loop(); }) {}

Worker::~Worker() {
  Close();
  Join();
}

Work Worker::Submit(absl::AnyInvocable<void()> task) {
  auto state = std::make_shared<HostWorkState>();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) Throw(absl::StatusCode::kFailedPrecondition, "this communicator's rank has ended");
    num_pending_.fetch_add(1);
    tasks_.push_back({std::move(task), state});
  }
  wake_.notify_one();
  return Work(std::move(state));
}

void Worker::WaitIdle() {
  std::unique_lock<std::mutex> lock(mutex_);
  idle_.wait(lock, [this] { return idle(); });
}

void Worker::Close() noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  wake_.notify_one();
}

void Worker::Join() {
  if (thread_.joinable()) thread_.join();
}

void Worker::Execute(Task task) {
  std::optional<Error> error;
  try {
    task.run();
  } catch (const Error& caught) {
    error = caught;
  } catch (const std::exception& caught) {
    error.emplace(absl::StatusCode::kInternal, caught.what());
  }
  // In this order: a thread that has waited for the Work holds its buffers alone, and one that finds the
  // worker idle finds its Works finished.
  task.run = nullptr;
  task.state->Finish(std::move(error));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    num_pending_.fetch_sub(1);
  }
  idle_.notify_all();
}

void Worker::Loop() {
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
    if (tasks_.empty()) break;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    Execute(std::move(task));
  }
  ended_.store(true);
}

}  // namespace weft
