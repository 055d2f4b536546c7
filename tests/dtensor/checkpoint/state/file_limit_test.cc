// A step of more files than a process may have open.

#include <sys/resource.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/folder/step_reader.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

TEST(FileLimitTest, AStepOfManyRanksIsReadWithFewOpenFiles) {
  constexpr int kRanks = 32;
  const std::string folder = testing::TempDir() + "/many";
  std::filesystem::remove_all(folder);
  RunRanks(kRanks, [&](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=32"));
    const DTensor value = Arange(context, DType::kF32, 0, 2 * kRanks, 1, Layout(1, 1).WithShard(0, 0));
    State state;
    state.Add("model", MakeTensorState([value] {
                return std::vector<std::pair<std::string, DTensor>>{{"value", value}};
              }));
    CheckpointManager manager(world, {.folder = folder, .background = false});
    manager.Save(1, state);
  });
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 24;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
  std::vector<float> values;
  std::string error;
  try {
    StepReader reader(MakeDiskFiles(), folder, 1);
    for (int round = 0; round < 2; ++round) {
      values = reader.Read("value", WholeBox({2 * kRanks}), MakeCpuAllocator()).ToVector<float>();
    }
    reader.CheckPieces("value", {}, {});
  } catch (const Error& failure) {
    error = failure.message();
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(error, "");
  ASSERT_EQ(values.size(), 2u * kRanks);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(i));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace weft
