#include "runtime/comm/work.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "runtime/base/clamp_timeout.h"
#include "runtime/comm/work_state.h"

namespace weft {

void HostWorkState::Finish(std::optional<Error> error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  error_ = std::move(error);
  finished_.store(true, std::memory_order_release);
  wake_.notify_all();
}

void HostWorkState::ThrowIfFailed() const {
  if (error_.has_value()) throw Error(*error_);
}

void HostWorkState::Wait() {
  if (!finished()) {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [this] { return finished(); });
  }
  ThrowIfFailed();
}

bool HostWorkState::WaitFor(std::chrono::milliseconds timeout) {
  if (!finished()) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!wake_.wait_for(lock, timeout, [this] { return finished(); })) return false;
  }
  ThrowIfFailed();
  return true;
}

bool Work::Test() const { return state_ == nullptr || state_->finished(); }

namespace {

// A work and what the rank's thread has yet to do then, which no other thread looks at.
class ThenState final : public WorkState {
 public:
  // `first`: null if it has finished.
  ThenState(std::shared_ptr<WorkState> first, absl::AnyInvocable<void()> f)
      : first_(std::move(first)), f_(std::move(f)) {}

  bool finished() const override {
    if (first_ != nullptr && !first_->finished()) return false;
    Run();
    return true;
  }

  void Wait() override {
    if (first_ != nullptr) first_->Wait();
    RunAndThrow();
  }

  bool WaitFor(std::chrono::milliseconds timeout) override {
    if (first_ != nullptr && !first_->WaitFor(timeout)) return false;
    RunAndThrow();
    return true;
  }

  void WaitOnWorker() override {
    if (first_ != nullptr) first_->WaitOnWorker();
  }

 private:
  // Test does not throw, so the error waits for whoever waits.
  void Run() const {
    if (f_ == nullptr) return;
    // Taken out first: in `f` itself this is finished.
    absl::AnyInvocable<void()> f = std::exchange(f_, nullptr);
    try {
      if (first_ != nullptr) first_->Wait();  // its error, and a device's stream
      f();
    } catch (const Error& caught) {
      error_ = caught;
    } catch (const std::exception& caught) {
      error_.emplace(absl::StatusCode::kInternal, caught.what());
    }
  }

  void RunAndThrow() const {
    Run();
    if (error_.has_value()) throw Error(*error_);
  }

  const std::shared_ptr<WorkState> first_;
  mutable absl::AnyInvocable<void()> f_;  // null once it has run
  mutable std::optional<Error> error_;
};

// While it lives, the rank's thread waits for the operation that `state` is, if it is one.
class AwaitedScope {
 public:
  explicit AwaitedScope(const WorkState* state) : recorder_(state == nullptr ? nullptr : state->recorder()) {
    if (recorder_ != nullptr) before_ = recorder_->SetAwaited(state->flight_id());
  }
  ~AwaitedScope() {
    if (recorder_ != nullptr) recorder_->SetAwaited(before_);
  }
  AwaitedScope(const AwaitedScope&) = delete;
  AwaitedScope& operator=(const AwaitedScope&) = delete;

 private:
  FlightRecorder* const recorder_;
  uint64_t before_ = 0;
};

}  // namespace

void Work::SetOperation(FlightRecorder* recorder, uint64_t flight_id) const {
  if (state_ != nullptr) state_->SetOperation(recorder, flight_id);
}

void Work::Wait() const {
  if (state_ == nullptr) return;
  // What has finished may have outlived its recorder.
  const AwaitedScope scope(state_->finished() ? nullptr : state_.get());
  state_->Wait();
}

void Work::WaitOnWorker() const {
  if (state_ != nullptr) state_->WaitOnWorker();
}

bool Work::WaitFor(std::chrono::milliseconds timeout) const {
  return state_ == nullptr || state_->WaitFor(ClampTimeout(timeout));
}

Work Work::Then(absl::AnyInvocable<void()> f) const {
  auto state = std::make_shared<ThenState>(state_, std::move(f));
  if (state_ != nullptr) state->SetOperation(state_->recorder(), state_->flight_id());
  return Work(std::move(state));
}

void Work::WaitInOrder(absl::Span<const Work> works) {
  const auto operation_of = [&](size_t task) -> const WorkState* {
    const auto is_operation = [](const Work& work) {
      return work.state_ != nullptr && work.state_->recorder() != nullptr;
    };
    const auto behind = std::find_if(works.begin() + task, works.end(), is_operation);
    if (behind != works.end()) return behind->state_.get();
    const auto before = std::find_if(works.rbegin(), works.rend(), is_operation);
    return before != works.rend() ? before->state_.get() : nullptr;
  };
  for (size_t i = 0; i < works.size(); ++i) {
    if (works[i].state_ == nullptr) continue;
    const AwaitedScope scope(works[i].Test() ? nullptr : operation_of(i));
    works[i].state_->Wait();
  }
}

}  // namespace weft
