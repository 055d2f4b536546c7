#include "runtime/comm/queued_work.h"

#include <chrono>
#include <thread>
#include <utility>

#include "runtime/comm/work_state.h"

namespace weft {
namespace {

enum class ResultsLieOn { kDevice, kHost };

class QueuedWorkState final : public WorkState {
 public:
  QueuedWorkState(std::shared_ptr<QueuedBatch> batch, std::vector<Work> works, ResultsLieOn results)
      : batch_(std::move(batch)), works_(std::move(works)), results_(results) {}

  bool finished() const override { return batch_->Test(); }
  void Wait() override {
    if (results_ == ResultsLieOn::kDevice) {
      batch_->Join();  // and with it what it has waited for
    } else {
      // For how long the device stands still for them is measured from when they are joined: before the host waits.
      WaitForWorks();
      batch_->Synchronize();
    }
    WaitForWorks();  // for their errors
  }
  bool WaitFor(std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    constexpr std::chrono::microseconds kPause(50);
    while (!finished()) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(kPause);
    }
    Wait();
    return true;
  }

 private:
  void WaitForWorks() const {
    for (const Work& work : works_) work.WaitOnWorker();
  }

  const std::shared_ptr<QueuedBatch> batch_;
  const std::vector<Work> works_;
  const ResultsLieOn results_;
};

Work Make(std::shared_ptr<QueuedBatch> batch, std::vector<Work> works, ResultsLieOn results) {
  return Work(std::make_shared<QueuedWorkState>(std::move(batch), std::move(works), results));
}

}  // namespace

Work MakeQueuedWork(std::shared_ptr<QueuedBatch> batch, std::vector<Work> works) {
  return Make(std::move(batch), std::move(works), ResultsLieOn::kDevice);
}

Work MakeArrivalWork(std::shared_ptr<QueuedBatch> batch, std::vector<Work> works) {
  return Make(std::move(batch), std::move(works), ResultsLieOn::kHost);
}

}  // namespace weft
