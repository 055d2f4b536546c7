// Saves and snapshots of what a collective has left that NCCL has given up: on emulated GPUs, over a fake NCCL.

#include <barrier>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/memory/test_nodes.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/message_of.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kFolder[] = "runs";

// What both ranks' `save` throws of a state in which such a collective's result is; the host is ahead of it.
void ExpectNothingIsKept(const std::function<CheckpointOptions(int rank)>& options_of,
                         const std::function<void(CheckpointManager&, const State&)>& save) {
  const auto files = std::make_shared<CrashFiles>();
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier both(2);
  const auto body = [&](World& world) {
    const auto context = Bind(world, DeviceMesh({{"dp", 2}}));
    const DTensor tensor = DTensor::Distribute(context, Tensor::FromValues<float>({4}, std::vector<float>(4)),
                                               Layout(1, 1).WithShard(0, 0));
    State state;
    state.Add("tensors", TensorsPart({{"tensor", tensor}}));
    CheckpointOptions options = options_of(world.rank());
    options.files = files;
    CheckpointManager manager(world, options);
    const auto group = world.NewGroup("grad", {0, 1});
    AllReduceUntilAborted(world, *fake, *group, tensor.ToLocal());
    both.arrive_and_wait();
    fake->SetAsyncError(world.rank(), NcclResult::kRemoteError);
    EXPECT_THAT(MessageOf([&] { save(manager, state); }), HasSubstr("group 'grad'"));
  };
  RunNcclRanks(2, body, fake);
  EXPECT_THAT(ListSteps(*files, kFolder), IsEmpty());
}

TEST(CutOffTest, ASaveDoesNotKeepIt) {
  for (const bool background : {false, true}) {
    SCOPED_TRACE(background);
    ExpectNothingIsKept([&](int) { return CheckpointOptions{.folder = kFolder, .background = background}; },
                        [](CheckpointManager& manager, const State& state) {
                          manager.Save(1, state);
                          manager.Wait();
                        });
  }
}

TEST(CutOffTest, ASnapshotDoesNotKeepIt) {
  const TestNodes nodes(2, /*ranks_per_node=*/1);
  ExpectNothingIsKept(
      [&](int rank) {
        return CheckpointOptions{.folder = kFolder,
                                 .snapshot_every = 1,
                                 .snapshot_memory = nodes.MemoryOf(rank),
                                 .warn = [](const std::string&) {}};
      },
      [](CheckpointManager& manager, const State& state) {
        manager.AfterStep(1, state);
        manager.Wait();
      });
  int num_stamped = 0;
  nodes.ForEach([&](MemorySegment&, const SnapshotStamp&, bool) { ++num_stamped; });
  EXPECT_EQ(num_stamped, 0);
}

// Each rank saves what it has alone, as under ddp: no collective of the save fails.
TEST(CutOffTest, AFileDoesNotKeepIt) {
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier both(2);
  const auto body = [&](World& world) {
    const auto context = Bind(world, DeviceMesh({{"dp", 2}}));
    const auto own = Bind(context, context->mesh().Slice({{"dp", world.rank()}}));
    const DTensor tensor = DTensor::Distribute(own, Tensor::FromValues<float>({4}, std::vector<float>(4)),
                                               Layout(1, own->mesh().num_axes()));
    const std::string path = testing::TempDir() + "/cut_off_" + std::to_string(world.rank());
    std::ofstream(path) << "of an earlier save";
    const auto group = world.NewGroup("grad", {0, 1});
    AllReduceUntilAborted(world, *fake, *group, tensor.ToLocal());
    both.arrive_and_wait();
    fake->SetAsyncError(world.rank(), NcclResult::kRemoteError);
    EXPECT_THAT(MessageOf([&] { SaveTensors(path, {{"tensor", tensor}}, {}); }), HasSubstr("group 'grad'"));
    std::ifstream file(path);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "of an earlier save");
  };
  RunNcclRanks(2, body, fake);
}

}  // namespace
}  // namespace weft
