#include "runtime/launch/device_backend_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/store/hash_store.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/message_of.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<int> RanksTo(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Whether ranks get NCCL's communicators: whether the library was asked for any.
bool UsesNccl(const WorldOptions& options, int num_ranks) {
  const auto fake = std::make_shared<FakeNccl>();
  RunNcclRanks(
      1, [](World&) {}, fake);  // the fake is the one in use from now on
  std::atomic<int64_t> num_made = 0;
  RunRanks(
      num_ranks,
      [&](World& world) {
        const auto group = world.NewGroup("all", RanksTo(world.size()));
        group->Barrier();
        num_made = fake->NumLive();
        group->Barrier();
      },
      options);
  return num_made > 0;
}

TEST(DeviceBackendChoiceTest, RanksUseItWhereEachHasAGpu) {
  WorldOptions options = {.device = DeviceType::kCuda, .threads_per_rank = 1};
  EXPECT_TRUE(UsesNccl(options, 2));
  EXPECT_FALSE(UsesNccl(options, 9));  // on eight
  options.backend = Backend::kLocal;
  EXPECT_FALSE(UsesNccl(options, 2));
  options.backend = Backend::kNccl;
  EXPECT_TRUE(UsesNccl(options, 2));
  EXPECT_EQ(MessageOf([&] {
              RunRanks(
                  9, [](World&) {}, options);
            }),
            "backend nccl: 9 ranks, but this process sees 8 GPUs: NCCL needs one for each; use "
            "--backend=auto");
}

// NCCL may sum in another order from run to run unless it is told one.
TEST(DeviceBackendChoiceTest, DeterministicRefusesNcclsOwnChoice) {
  const auto run = [](DeviceType device, Backend backend) {
    return MessageOf([&] {
      RunRanks(2, [](World&) {},
               {.backend = backend, .device = device, .threads_per_rank = 1, .deterministic = true});
    });
  };
  const auto says = [](const char* what) { return AllOf(HasSubstr(what), HasSubstr("NCCL_ALGO=Ring")); };
  unsetenv("NCCL_ALGO");
  unsetenv("NCCL_PROTO");
  EXPECT_EQ(run(DeviceType::kCpu, Backend::kAuto), "no error");
  EXPECT_EQ(run(DeviceType::kCuda, Backend::kLocal), "no error");
  EXPECT_THAT(run(DeviceType::kCuda, Backend::kAuto), says("deterministic: NCCL_ALGO is ''"));
  EXPECT_THAT(run(DeviceType::kCuda, Backend::kNccl), says("deterministic: NCCL_ALGO is ''"));
  for (const char* const several : {"Ring,Tree", "^Tree", "allreduce:ring;broadcast:tree"}) {
    setenv("NCCL_ALGO", several, /*overwrite=*/1);
    EXPECT_THAT(run(DeviceType::kCuda, Backend::kNccl), says(several));
  }
  setenv("NCCL_ALGO", "Ring", 1);
  EXPECT_THAT(run(DeviceType::kCuda, Backend::kNccl), says("deterministic: NCCL_PROTO is ''"));
  setenv("NCCL_PROTO", "Simple", 1);
  EXPECT_EQ(run(DeviceType::kCuda, Backend::kNccl), "no error");
  unsetenv("NCCL_ALGO");
  unsetenv("NCCL_PROTO");
}

// Of the host's memory beside NCCL's: no call of it asks the library for anything.
TEST(DeviceBackendChoiceTest, RanksMayHaveLocalGroupsBesideIt) {
  const auto fake = std::make_shared<FakeNccl>();
  RunNcclRanks(
      1, [](World&) {}, fake);
  RunRanks(2,
           [&](World& world) {
             const auto host = world.NewGroup("host", {0, 1}, {.backend = Backend::kLocal});
             const Tensor tensor = Tensor::Empty(MakeCpuAllocator(), DType::kF32, {1});
             *tensor.data<float>() = static_cast<float>(world.rank() + 1);
             host->AllReduce(tensor, tensor, ReduceOp::kSum);
             EXPECT_EQ(*tensor.data<float>(), 3);
             EXPECT_EQ(fake->NumLive(), 0);
             host->Barrier();
             world.NewGroup("all", {0, 1})->Barrier();
             EXPECT_GT(fake->NumLive(), 0);
             host->Barrier();
           },
           {.device = DeviceType::kCuda, .threads_per_rank = 1});
}

TEST(DeviceBackendChoiceTest, ProcessesAgreeWhetherEachHasAGpu) {
  cuda_emulator::SetMachine({.num_devices = 4});
  for (bool shares : {false, true}) {
    HashStore store;
    std::vector<std::thread> ranks;
    std::atomic<int> num_yes = 0;
    std::atomic<int> num_errors = 0;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto allocator = MakeAllocator({DeviceType::kCuda, shares ? rank % 2 : rank});
        WorldOptions options = {.device = DeviceType::kCuda};
        num_yes += ProcessesUseDeviceGroups(options, store, rank, 3, *allocator);
        options.backend = Backend::kGloo;
        EXPECT_FALSE(ProcessesUseDeviceGroups(options, store, rank, 3, *allocator));
        options.backend = Backend::kNccl;
        try {
          num_yes += ProcessesUseDeviceGroups(options, store, rank, 3, *allocator);
        } catch (const Error& error) {
          ++num_errors;
          EXPECT_THAT(error.message(), AllOf(HasSubstr("backend nccl: rank 2 shares "),
                                             HasSubstr(" 0000:00:00.0 with a rank before")));
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(num_yes, shares ? 0 : 6);
    EXPECT_EQ(num_errors, shares ? 3 : 0);
  }
}

// NCCL refuses two ranks that have one GPU of one machine, and takes machines to be what NCCL_HOSTID says.
TEST(DeviceBackendChoiceTest, MachinesAreWhatNcclTakesThemToBe) {
  cuda_emulator::SetMachine({.num_devices = 1});
  const auto allocator = MakeAllocator({DeviceType::kCuda, 0});
  const auto name = [&] { return DeviceGroupsOf(DeviceType::kCuda).device_name(*allocator); };
  const std::string own = name();
  setenv("NCCL_HOSTID", "rack 3", /*overwrite=*/1);
  EXPECT_EQ(name(), "rack 3 0000:00:00.0");
  unsetenv("NCCL_HOSTID");
  EXPECT_EQ(name(), own);
}

}  // namespace
}  // namespace weft
