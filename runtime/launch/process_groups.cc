#include "runtime/launch/process_groups.h"

#include <utility>

#include "runtime/comm/gloo/communicator.h"
#include "runtime/comm/gloo/hub.h"
#include "runtime/comm/mpi/communicator.h"
#include "runtime/comm/mpi/hub.h"

namespace weft {
namespace {

class GlooGroups final : public ProcessGroups {
 public:
  explicit GlooGroups(std::shared_ptr<GlooHub> hub) : hub_(std::move(hub)) {}

  std::shared_ptr<Communicator> Make(const std::string& name, const std::vector<int>& ranks, Ledger* ledger,
                                     WorkerPool* workers) override {
    return MakeGlooCommunicator(hub_, name, ranks, ledger, workers);
  }
  void AbortAll(const std::string& reason) override { hub_->AbortAll(reason); }
  void Finish() override { hub_->Finish(); }

 private:
  const std::shared_ptr<GlooHub> hub_;
};

class DeviceProcessGroups final : public ProcessGroups {
 public:
  explicit DeviceProcessGroups(std::unique_ptr<DeviceGroups> groups) : groups_(std::move(groups)) {}

  std::shared_ptr<Communicator> Make(const std::string& name, const std::vector<int>& ranks, Ledger* ledger,
                                     WorkerPool*) override {
    return groups_->Make(name, ranks, ledger);
  }
  void FinishWork() override { groups_->FinishWork(); }
  void ThrowIfCutOff() const override { groups_->ThrowIfCutOff(); }
  void AbortAll(const std::string& reason) override { groups_->AbortAll(reason); }
  void Finish() override { groups_->Finish(); }

 private:
  const std::unique_ptr<DeviceGroups> groups_;
};

class MpiGroups final : public ProcessGroups {
 public:
  explicit MpiGroups(std::shared_ptr<MpiHub> hub) : hub_(std::move(hub)) {}

  std::shared_ptr<Communicator> Make(const std::string& name, const std::vector<int>& ranks, Ledger* ledger,
                                     WorkerPool* workers) override {
    return MakeMpiCommunicator(hub_, name, ranks, ledger, workers);
  }
  void AbortAll(const std::string& reason) override { hub_->AbortAll(reason); }
  void Finish() override { hub_->FinishRank(); }

 private:
  const std::shared_ptr<MpiHub> hub_;
};

}  // namespace

std::unique_ptr<ProcessGroups> MakeGlooGroups(const LaunchEnvironment& environment,
                                              std::shared_ptr<Store> store) {
  // The job's store tells how a process has ended, soon after its connections have.
  const GlooOptions options = {.address = environment.gloo_host,
                               .ranks_on_host = environment.local_world_size,
                               .reason_takes = std::chrono::milliseconds(700)};
  return std::make_unique<GlooGroups>(
      std::make_shared<GlooHub>(std::move(store), environment.rank, environment.world_size, options));
}

std::unique_ptr<ProcessGroups> MakeDeviceProcessGroups(std::unique_ptr<DeviceGroups> groups) {
  return std::make_unique<DeviceProcessGroups>(std::move(groups));
}

std::unique_ptr<ProcessGroups> MakeMpiGroups(MpiEnvironment& mpi) {
  return std::make_unique<MpiGroups>(mpi.NewHub(mpi.size()));
}

}  // namespace weft
