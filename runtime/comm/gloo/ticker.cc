#include "runtime/comm/gloo/ticker.h"

#include <algorithm>
#include <chrono>

namespace weft {
namespace {

constexpr std::chrono::milliseconds kTickLength(10);
constexpr std::chrono::microseconds kSoonLength(100);
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

}  // namespace

// Within the lock that the thread holds while it releases: the buffer outlives its registration.
class GlooTicker::Registration {
 public:
  Registration(GlooTicker& ticker, const Waiter& waiter, Pace pace)
      : ticker_(ticker), buffer_(waiter.buffer), hurried_(pace == Pace::kSoon) {
    {
      const std::lock_guard<std::mutex> lock(ticker_.mutex_);
      ticker_.waiters_.push_back(waiter);
      if (hurried_) ++ticker_.num_hurried_;
    }
    if (hurried_) ticker_.wake_.notify_one();
  }

  ~Registration() {
    const std::lock_guard<std::mutex> lock(ticker_.mutex_);
    std::erase_if(ticker_.waiters_, [this](const Waiter& waiter) { return waiter.buffer == buffer_; });
    if (hurried_) --ticker_.num_hurried_;
  }

 private:
  GlooTicker& ticker_;
  gloo::transport::UnboundBuffer* const buffer_;
  const bool hurried_;
};

GlooTicker::GlooTicker() : thread_([this] { Loop(); }) {}

GlooTicker::~GlooTicker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

bool GlooTicker::AwaitSend(gloo::transport::UnboundBuffer& buffer, Pace pace) {
  const Registration registration(*this, {&buffer, /*is_send=*/true}, pace);
  return buffer.waitSend(nullptr, kForever);
}

bool GlooTicker::AwaitReceive(gloo::transport::UnboundBuffer& buffer, Pace pace) {
  const Registration registration(*this, {&buffer, /*is_send=*/false}, pace);
  return buffer.waitRecv(nullptr, kForever);
}

void GlooTicker::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    if (num_hurried_ > 0) {
      wake_.wait_for(lock, kSoonLength, [this] { return stop_; });
    } else {
      wake_.wait_for(lock, kTickLength, [this] { return stop_ || num_hurried_ > 0; });
      if (num_hurried_ > 0) continue;
    }
    for (const Waiter& waiter : waiters_) {
      waiter.is_send ? waiter.buffer->abortWaitSend() : waiter.buffer->abortWaitRecv();
    }
  }
}

}  // namespace weft
