#ifndef WEFT_RUNTIME_COMM_GLOO_TICKER_H_
#define WEFT_RUNTIME_COMM_GLOO_TICKER_H_

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "gloo/transport/unbound_buffer.h"

namespace weft {

// Gloo's waits cannot be polled, and one that times out closes the context for good. So they are without end,
// and a thread releases whoever waits every few milliseconds: to look at the group's state and the deadline,
// and to wait again. A release that meets the end of the wait loses nothing: the next wait returns at once.
//
// Threads: any.
class GlooTicker {
 public:
  // kSoon: waits to see whether something is there now.
  enum class Pace { kTick, kSoon };

  GlooTicker();
  ~GlooTicker();
  GlooTicker(const GlooTicker&) = delete;
  GlooTicker& operator=(const GlooTicker&) = delete;

  // Waits until the send or the receive posted on `buffer` is through (true) or the ticker has released the
  // wait (false).
  // Errors: gloo's.
  bool AwaitSend(gloo::transport::UnboundBuffer& buffer, Pace pace = Pace::kTick);
  bool AwaitReceive(gloo::transport::UnboundBuffer& buffer, Pace pace = Pace::kTick);

 private:
  struct Waiter {
    gloo::transport::UnboundBuffer* buffer;
    bool is_send;
  };
  class Registration;

  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Waiter> waiters_;
  int num_hurried_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_TICKER_H_
