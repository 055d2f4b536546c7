// A world whose transport is late.

#ifndef WEFT_TESTS_PARALLEL_SCHEDULER_LATE_WORLD_H_
#define WEFT_TESTS_PARALLEL_SCHEDULER_LATE_WORLD_H_

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/worker.h"
#include "runtime/launch/world.h"
#include "tests/parallel/scheduler/forward_operation.h"

namespace weft {

// Another communicator, whose operations on a lane begin a while after their turn has come.
class LateCommunicator final : public Communicator {
 public:
  LateCommunicator(std::shared_ptr<Communicator> inner, std::chrono::milliseconds delay)
      : Communicator(inner->name(), inner->rank(), inner->ranks(), /*ledger=*/nullptr),
        inner_(std::move(inner)),
        delay_(delay) {}

  void Fail(absl::StatusCode code, const std::string& message) override { inner_->Fail(code, message); }
  void SetInBackground() override { inner_->SetInBackground(); }

 protected:
  Work Submit(Operation&& operation) override {
    if (operation.options.worker != nullptr) {
      operation.options.worker->Submit([delay = delay_] { std::this_thread::sleep_for(delay); });
    }
    return ForwardOperation(*inner_, operation);
  }

 private:
  const std::shared_ptr<Communicator> inner_;
  const std::chrono::milliseconds delay_;
};

class LateWorld final : public World {
 public:
  LateWorld(World& inner, std::chrono::milliseconds delay)
      : World(inner.rank(), inner.size(), /*num_threads=*/1, inner.allocator(), inner.tracer()),
        inner_(inner),
        delay_(delay) {}

  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_shared<LateCommunicator>(inner_.NewGroup(name, ranks), delay_);
  }

 private:
  World& inner_;
  const std::chrono::milliseconds delay_;
};

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_SCHEDULER_LATE_WORLD_H_
