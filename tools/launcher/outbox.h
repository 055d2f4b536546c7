// What a launcher tells the job's store, on a thread of its own.

#ifndef WEFT_TOOLS_LAUNCHER_OUTBOX_H_
#define WEFT_TOOLS_LAUNCHER_OUTBOX_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>

#include "tools/launcher/processes/file_descriptor.h"

namespace weft {

// Does what it is given, in order, so that whoever gives it does not wait for a store that is slow, away or full.
//
// Lifetime: the destructor returns once all is done.
// Threads:  one, beside the one that does it.
class Outbox {
 public:
  Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  ~Outbox();

  // `task` does not throw.
  void Post(std::function<void()> task);

  // Returns once all that was posted is done.
  void Drain();
  // The same, but after `bound` at the latest.
  void DrainFor(std::chrono::milliseconds bound);

  // Polls as readable when something is done, until Clear.
  int event_fd() const { return event_.get(); }
  void Clear();

 private:
  void Work();

  FileDescriptor event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<std::function<void()>> tasks_;  // the first is under way
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_OUTBOX_H_
