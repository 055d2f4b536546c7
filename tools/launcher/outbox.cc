#include "tools/launcher/outbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "runtime/base/error.h"

namespace weft {

Outbox::Outbox() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  WEFT_CHECK(event_.open(), "eventfd failed");
  thread_ = std::thread([this] { Work(); });
}

Outbox::~Outbox() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Outbox::Post(std::function<void()> task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push(std::move(task));
  }
  changed_.notify_all();
}

void Outbox::Drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty(); });
}

void Outbox::DrainFor(std::chrono::milliseconds bound) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, bound, [this] { return tasks_.empty(); });
}

void Outbox::Clear() {
  for (uint64_t events = 0; read(event_.get(), &events, sizeof(events)) > 0;) continue;
}

void Outbox::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::function<void()> task = tasks_.front();
    lock.unlock();
    task();
    lock.lock();
    tasks_.pop();
    changed_.notify_all();
    const uint64_t one = 1;
    if (write(event_.get(), &one, sizeof(one)) < 0) continue;  // full: it polls as readable already
  }
}

}  // namespace weft
