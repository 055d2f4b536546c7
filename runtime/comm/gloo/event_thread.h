#ifndef WEFT_RUNTIME_COMM_GLOO_EVENT_THREAD_H_
#define WEFT_RUNTIME_COMM_GLOO_EVENT_THREAD_H_

#include <sys/types.h>

#include <atomic>

#include "absl/functional/function_ref.h"

namespace weft {

// The thread in which a Gloo device reads and writes its connections.
//
// It does not wait for the lock of a connection that another thread holds: it asks again and again. If what
// has come for it wakes it on the core of just that thread, the two stand still until its time is up: 4 ms
// instead of 50 us. So whoever is about to take such a lock asks it for patience: woken then, it does not
// take the core of a thread that runs. Not for longer: among threads that compute it would wait its turn each
// time.
//
// Threads: any.
class GlooEventThread {
 public:
  // The one that `make` starts. Where it cannot be found, in a system without /proc, patience does nothing.
  explicit GlooEventThread(absl::FunctionRef<void()> make);
  GlooEventThread(const GlooEventThread&) = delete;
  GlooEventThread& operator=(const GlooEventThread&) = delete;

  // While one lives.
  // Lifetime: the device outlives it.
  // Cost:   the first of several, two system calls, a microsecond.
  class Patience {
   public:
    explicit Patience(GlooEventThread* thread) : thread_(thread) {  // null: nobody's
      if (thread_ != nullptr) thread_->Ask(+1);
    }
    ~Patience() {
      if (thread_ != nullptr) thread_->Ask(-1);
    }
    Patience(const Patience&) = delete;
    Patience& operator=(const Patience&) = delete;

   private:
    GlooEventThread* const thread_;
  };

 private:
  void Ask(int change);

  pid_t id_ = 0;  // 0: not found, or the program has another policy than the usual
  std::atomic<int> num_asking_ = 0;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_EVENT_THREAD_H_
