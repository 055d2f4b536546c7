#include "runtime/launch/run_ranks.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/comm/group_failure.h"
#include "runtime/comm/local/communicator.h"
#include "runtime/comm/local/hub.h"
#include "runtime/device/device_queue.h"
#include "runtime/launch/device_backend_choice.h"
#include "runtime/launch/hangs/watchdog.h"
#include "runtime/launch/world_store.h"
#include "runtime/store/hash_store.h"

namespace weft {
namespace {

// What the ranks of one call of RunRanks share.
struct Shared {
  explicit Shared(int num_ranks) : hub(std::make_shared<LocalHub>(num_ranks)) {}

  const std::shared_ptr<LocalHub> hub;
  GroupFailure failure;  // of the first rank that failed
  WorldStore store{std::make_shared<HashStore>(), [this] { failure.ThrowIfFailed(); }};
  std::shared_ptr<Store> device_store;  // where the ranks' devices meet; null if they do not
};

class LocalWorld final : public World {
 public:
  LocalWorld(int rank, int size, int num_threads, const WorldOptions& options, Shared& shared)
      : World(rank, size, /*local_rank=*/rank, num_threads, options),
        comm_timeout_(options.comm_timeout),
        shared_(shared) {
    if (shared.device_store == nullptr) return;
    device_groups_ = DeviceGroupsOf(options.device).make(shared.device_store, rank, allocator());
  }

  Store& store() override { return shared_.store; }

  void FinishWork() override {
    World::FinishWork();
    if (device_groups_ != nullptr) device_groups_->FinishWork();
    FinishDeviceQueues(*allocator());
  }
  void ThrowIfCutOff() const override {
    if (device_groups_ != nullptr) device_groups_->ThrowIfCutOff();
  }
  DeviceGroups* device_groups() { return device_groups_.get(); }  // may be null

 protected:
  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    return MakeGroupOn(device_groups_ != nullptr ? Backend::kNccl : Backend::kLocal, name, ranks);
  }

  std::shared_ptr<Communicator> MakeGroupOn(Backend backend, const std::string& name,
                                            const std::vector<int>& ranks) override {
    std::shared_ptr<Communicator> group;
    if (backend == Backend::kLocal) {
      group = MakeLocalCommunicator(shared_.hub, rank(), name, ranks, &ledger(), &workers());
    } else if (backend == Backend::kNccl && device_groups_ != nullptr) {
      group = device_groups_->Make(name, ranks, &ledger());
    }
    if (group != nullptr) group->set_timeout(comm_timeout_);
    return group;
  }

 private:
  std::chrono::milliseconds comm_timeout_;
  Shared& shared_;
  std::unique_ptr<DeviceGroups> device_groups_;  // null: the local communicator
};

// One call of RunRanks.
class Launch {
 public:
  Launch(int num_ranks, const std::function<void(World&)>& body, const WorldOptions& options)
      : num_ranks_(num_ranks),
        body_(body),
        options_(options),
        shared_(num_ranks),
        watchdog_(num_ranks, /*store=*/nullptr, options.watchdog) {
    num_threads_ = options.threads_per_rank;
    if (num_threads_ == 0) {
      num_threads_ = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / num_ranks);
    }
    if (ThreadsUseDeviceGroups(options, num_ranks)) shared_.device_store = std::make_shared<HashStore>();
  }

  void Run() {
    std::vector<std::thread> threads;
    try {
      threads.reserve(num_ranks_);
      for (int rank = 0; rank < num_ranks_; ++rank) threads.emplace_back([this, rank] { RunRank(rank); });
    } catch (...) {  // the system has no more threads
      const std::string reason = "not all ranks could be started";
      RecordFailure(std::current_exception(), reason);
    }
    for (std::thread& thread : threads) thread.join();
    if (first_error_ != nullptr) std::rethrow_exception(first_error_);
  }

 private:
  void RunRank(int rank) {
    // Outside the try: its ledger outlives the work of its workers.
    std::optional<LocalWorld> world;
    try {
      world.emplace(rank, num_ranks_, num_threads_, options_, shared_);
      Enter(world->device_groups());
      watchdog_.Watch(
          {rank, &world->flight_recorder(), [&world](absl::StatusCode code, const std::string& message) {
             world->FailGroups(code, message);
           }});
      body_(*world);
    } catch (const Error& error) {
      const std::string message = absl::StrCat("rank ", rank, ": ", error.message());
      RecordFailure(std::make_exception_ptr(Error(error.code(), message)), message);
    } catch (const std::exception& error) {
      RecordFailure(std::current_exception(), absl::StrCat("rank ", rank, ": ", error.what()));
    } catch (...) {
      RecordFailure(std::current_exception(), absl::StrCat("rank ", rank, " failed"));
    }
    if (world.has_value()) world->FinishWork();
    watchdog_.Forget(rank, "has returned from its function");
    shared_.hub->FinishRank(rank);
    if (!world.has_value() || world->device_groups() == nullptr) return;
    world->device_groups()->Finish();
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase(device_groups_, world->device_groups());
  }

  // Ranks that fail end the others' groups, those too that come later.
  void Enter(DeviceGroups* groups) {
    if (groups == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    device_groups_.push_back(groups);
    if (first_error_ != nullptr) groups->AbortAll(abort_reason_);
  }

  void RecordFailure(std::exception_ptr error, const std::string& message) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (first_error_ == nullptr) {
        first_error_ = std::move(error);
        abort_reason_ = message;
      }
      for (DeviceGroups* groups : device_groups_) groups->AbortAll(message);
    }
    shared_.failure.Set(absl::StatusCode::kAborted, message);
    shared_.hub->AbortAll(message);
  }

  const int num_ranks_;
  const std::function<void(World&)>& body_;
  const WorldOptions& options_;
  Shared shared_;
  Watchdog watchdog_;
  int num_threads_ = 1;
  std::mutex mutex_;
  std::exception_ptr first_error_;
  std::string abort_reason_;
  std::vector<DeviceGroups*> device_groups_;  // of the ranks that run
};

}  // namespace

void RunRanks(int num_ranks, const std::function<void(World&)>& body, const WorldOptions& options) {
  WEFT_REQUIRE(num_ranks >= 1, "RunRanks: num_ranks is ", num_ranks, ", must be at least 1");
  WEFT_REQUIRE(num_ranks <= kMaxThreadRanks, "RunRanks: num_ranks is ", num_ranks, ", must be at most ",
               kMaxThreadRanks, ": more ranks are processes, which a launcher starts (weft_run)");
  WEFT_REQUIRE(options.backend == Backend::kAuto || options.backend == Backend::kLocal ||
                   options.backend == Backend::kNccl,
               "RunRanks: its ranks are threads, over the local backend; RunWorld takes the others");
  WEFT_REQUIRE(options.threads_per_rank >= 0, "RunRanks: threads_per_rank is ", options.threads_per_rank,
               ", must be at least 1, or 0 for a fair share of the cores");
  Launch(num_ranks, body, options).Run();
}

}  // namespace weft
