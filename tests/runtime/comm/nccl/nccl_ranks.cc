#include "tests/runtime/comm/nccl/nccl_ranks.h"

#include <mutex>
#include <utility>

#include "gtest/gtest.h"
#include "runtime/base/reduce_op.h"
#include "runtime/comm/nccl/groups.h"
#include "runtime/device/cuda/allocator.h"
#include "runtime/device/cuda/check.h"
#include "runtime/launch/run_ranks.h"
#include "tests/cuda_emulator/emulator.h"

namespace weft {
namespace {

// A registered backend takes no arguments: what the current run's ranks get.
struct Current {
  std::mutex mutex;
  std::shared_ptr<FakeNccl> fake;
  std::function<std::shared_ptr<Store>(std::shared_ptr<Store> store, int rank)> wrap_store;
  NcclOptions options;
};
Current& TheCurrent() {
  static Current* const current = new Current;
  return *current;
}

std::unique_ptr<DeviceGroups> Make(std::shared_ptr<Store> store, int world_rank,
                                   std::shared_ptr<Allocator> allocator) {
  const std::lock_guard<std::mutex> lock(TheCurrent().mutex);
  if (TheCurrent().wrap_store) store = TheCurrent().wrap_store(std::move(store), world_rank);
  return MakeNcclGroups(TheCurrent().fake, std::move(store), world_rank, std::move(allocator),
                        TheCurrent().options);
}

// Shows the fake what the device takes back, and in the end whether NCCL has been misused.
class Watch {
 public:
  explicit Watch(std::shared_ptr<FakeNccl> fake) : fake_(std::move(fake)) {
    cuda_emulator::SetOnFree([fake = fake_](const void* data) { fake->NoteFreed(data); });
  }
  ~Watch() {
    cuda_emulator::SetOnFree(nullptr);
    for (const std::string& misuse : fake_->Misuses()) ADD_FAILURE() << "NCCL: " << misuse;
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  const std::shared_ptr<FakeNccl> fake_;
};

const RegisterDeviceGroups kRegister(DeviceType::kCuda, {&Make, &NcclDeviceName});

}  // namespace

NcclOptions FastNcclOptions() {
  return {.connect_timeout = std::chrono::seconds(60),
          .interval = std::chrono::milliseconds(2),
          .late_after = std::chrono::milliseconds(300),
          .patience = std::chrono::seconds(3)};
}

void RunNcclRanks(int num_ranks, const std::function<void(World&)>& body, std::shared_ptr<FakeNccl> fake,
                  std::chrono::milliseconds comm_timeout, WatchdogOptions watchdog,
                  const DeviceOptions& device_options,
                  std::function<std::shared_ptr<Store>(std::shared_ptr<Store> store, int rank)> wrap_store,
                  const NcclOptions& options) {
  cuda_emulator::SetMachine({.num_devices = 8});
  const Watch watch(fake);
  {
    const std::lock_guard<std::mutex> lock(TheCurrent().mutex);
    TheCurrent().fake = std::move(fake);
    TheCurrent().wrap_store = std::move(wrap_store);
    TheCurrent().options = options;
  }
  RunRanks(num_ranks, body,
           {.backend = Backend::kNccl,
            .device = DeviceType::kCuda,
            .device_options = device_options,
            .threads_per_rank = 1,
            .comm_timeout = comm_timeout,
            .watchdog = std::move(watchdog)});
}

void AllReduceUntilAborted(World& world, FakeNccl& fake, Communicator& group, const Tensor& tensor) {
  if (world.rank() == 1) {
    const CudaStreamRef stream = static_cast<const CudaAllocator&>(*world.allocator()).stream();
    CheckCuda(cuda_emulator::IssueWhenReady(stream.handle(), [&fake] { return fake.NumAborted() > 0; }),
              "IssueWhenReady");
  }
  group.AllReduce(tensor, tensor, ReduceOp::kSum);
}

}  // namespace weft
