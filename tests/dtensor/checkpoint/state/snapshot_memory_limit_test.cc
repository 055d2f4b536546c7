// A snapshot of what lies on an emulated GPU takes no memory of the process beside the segment. Sanitizers have data of their own,
// so this is not run under them.

#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/memory/segment.h"
#include "dtensor/checkpoint/memory/snapshot_piece.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/memory/test_nodes.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/small_stacks.h"

namespace weft {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

// What the system counts as the process's data: writable memory that it shares with nobody.
int64_t DataBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kibibytes = 0;
  while (status >> word && word != "VmData:") continue;
  EXPECT_TRUE(status >> kibibytes);
  return kibibytes << 10;
}

// While it lives, the process may have so much more.
class DataLimit {
 public:
  explicit DataLimit(int64_t more_bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_DATA, &before_), 0);
    const rlimit limit = {static_cast<rlim_t>(DataBytes() + more_bytes), before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
  }
  ~DataLimit() { setrlimit(RLIMIT_DATA, &before_); }
  DataLimit(const DataLimit&) = delete;
  DataLimit& operator=(const DataLimit&) = delete;

 private:
  rlimit before_ = {};
};

TEST(SnapshotMemoryLimitTest, ADevicesStateGoesStraightIntoTheSegment) {
  ASSERT_TRUE(UseSmallStacks());  // a snapshot has a thread of its own
  constexpr int64_t kBytes = 80 * kMebibyte;
  const TestNodes nodes(1, /*ranks_per_node=*/1);
  const auto body = [&](World& world) {
    const auto context = Bind(world, DeviceMesh({{"dp", 1}}));
    std::vector<float> values(kBytes / sizeof(float));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
    const DTensor tensor = DTensor::Distribute(
        context, Tensor::FromValues<float>({static_cast<int64_t>(values.size())}, values), Layout(1, 1));
    const DTensor small =
        DTensor::Distribute(context, Tensor::FromValues<uint8_t>({3}, {1, 2, 3}), Layout(1, 1));
    State state;
    // The large one lies behind the small one, at no multiple of its elements' size.
    state.Add("tensors", TensorsPart({{"a", small}, {"b", tensor}}));
    CheckpointManager manager(world, {.folder = "runs",
                                      .snapshot_every = 1,
                                      .snapshot_memory = nodes.MemoryOf(0),
                                      .files = std::make_shared<CrashFiles>(),
                                      .warn = [](const std::string&) {}});
    const DataLimit limit(kBytes / 2);
    manager.AfterStep(1, state);
    manager.Wait();
  };
  RunRanks(1, body, {.device = DeviceType::kCuda, .threads_per_rank = 1});
  std::vector<int64_t> sizes;
  nodes.ForEach([&](MemorySegment& segment, const SnapshotStamp& stamp, bool) {
    sizes.push_back(stamp.num_bytes);
    std::vector<uint8_t> first(3);
    segment.Read(kSnapshotElements, first.data(), 3);
    EXPECT_EQ(first, (std::vector<uint8_t>{1, 2, 3}));
    std::vector<float> values(kBytes / sizeof(float));
    segment.Read(kSnapshotElements + 3, values.data(), kBytes);
    int64_t num_wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) num_wrong += values[i] != static_cast<float>(i % 1000);
    EXPECT_EQ(num_wrong, 0);
  });
  EXPECT_THAT(sizes, testing::ElementsAre(kBytes + 3));
}

}  // namespace
}  // namespace weft
