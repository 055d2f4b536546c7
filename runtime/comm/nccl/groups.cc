#include "runtime/comm/nccl/groups.h"

#include <array>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/comm/nccl/communicator.h"
#include "runtime/device/cuda/check.h"

namespace weft {
namespace {

class NcclGroups final : public DeviceGroups {
 public:
  explicit NcclGroups(std::shared_ptr<NcclHub> hub) : hub_(std::move(hub)) {}
  ~NcclGroups() override { hub_->Finish(); }

  std::shared_ptr<Communicator> Make(const std::string& name, const std::vector<int>& ranks,
                                     Ledger* ledger) override {
    return MakeNcclCommunicator(hub_, name, ranks, ledger);
  }
  void FinishWork() override { hub_->FinishWork(); }
  void ThrowIfCutOff() const override { hub_->ThrowIfCutOff(); }
  void AbortAll(const std::string& reason) override { hub_->AbortAll(reason); }
  void Finish() override { hub_->Finish(); }

 private:
  const std::shared_ptr<NcclHub> hub_;
};

}  // namespace

NcclOptions NcclOptionsFromEnv() {
  const std::string text = NcclVariables()["WEFT_NCCL_REGISTER"];
  WEFT_REQUIRE(text.empty() || text == "0" || text == "1", "WEFT_NCCL_REGISTER is '", text,
               "'; expected 1 (memory is registered with NCCL) or 0 (it is not)");
  return {.register_memory = text == "1"};
}

std::unique_ptr<DeviceGroups> MakeNcclGroups(std::shared_ptr<NcclApi> api, std::shared_ptr<Store> store,
                                             int world_rank, std::shared_ptr<Allocator> allocator,
                                             NcclOptions options) {
  return std::make_unique<NcclGroups>(
      std::make_shared<NcclHub>(std::move(api), std::move(store), world_rank, std::move(allocator), options));
}

std::string NcclDeviceName(const Allocator& allocator) {
  std::array<char, 32> bus = {};
  CheckCuda(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), allocator.device().index),
            "cudaDeviceGetPCIBusId");
  std::string machine = NcclVariables()["NCCL_HOSTID"];
  // Another boot is another machine.
  if (machine.empty()) std::ifstream("/proc/sys/kernel/random/boot_id") >> machine;
  return absl::StrCat(machine, " ", bus.data());
}

}  // namespace weft
