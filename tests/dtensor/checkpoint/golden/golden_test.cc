// A newer Weft reads what an older one wrote: a folder of each format is kept, and read on meshes of one and two ranks.

#include <cstring>
#include <filesystem>
#include <string>

#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/folder/step_reader.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/golden/golden_state.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"

namespace weft {
namespace {

// Where the manager may write its nonce.
std::string CopyOf(const std::string& golden) {
  const std::string folder = testing::TempDir() + "/golden";
  std::filesystem::remove_all(folder);
  std::filesystem::copy("tests/dtensor/checkpoint/golden/" + golden, folder,
                        std::filesystem::copy_options::recursive);
  return folder;
}

class GoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, Reads) {
  const std::string folder = CopyOf(GetParam());
  const std::shared_ptr<Files> files = MakeDiskFiles();
  EXPECT_THAT(ListSteps(*files, folder), testing::ElementsAre(1, 2));
  EXPECT_THAT(VerifyStep(*files, folder, 1).problems, testing::IsEmpty());
  EXPECT_THAT(VerifyStep(*files, folder, 2).problems, testing::IsEmpty());
  StepReader reader(files, folder, 2);
  EXPECT_THAT(reader.Names(), testing::ElementsAre("both", "count", "first", "second", "split"));
  EXPECT_EQ(reader.manifest().generation, 1);
  EXPECT_THAT(reader.manifest().refers_to, testing::ElementsAre(1));
  EXPECT_EQ(reader.manifest().texts.at("flags"), "{\"layers\": \"2\"}");
  for (const std::string& name : reader.Names()) {
    const TensorType type = *reader.Find(name);
    const Tensor read = reader.Read(name, WholeBox(type.shape), MakeCpuAllocator());
    const std::vector<char> expected =
        BoxBytes(name, name == "split" ? 7 : 8, type.dtype, WholeBox(type.shape));
    ASSERT_EQ(read.num_bytes(), std::ssize(expected));
    EXPECT_EQ(std::memcmp(read.data(), expected.data(), expected.size()), 0) << name;
  }
  RunRanks(2, [&](World& world) {
    State state = GoldenState(world);
    CheckpointManager manager(world, {.folder = folder});
    EXPECT_EQ(manager.latest_step(), 2);
    manager.Load(1, state);
    EXPECT_EQ(CountWrongBytes(state, 7), 0);
    FillState(state, 9);
    manager.Save(3, state);
    EXPECT_THAT(VerifyStep(*files, folder, 3).problems, testing::IsEmpty());
  });
}

INSTANTIATE_TEST_SUITE_P(Formats, GoldenTest, testing::Values("format-1"));

TEST(GoldenFormats, AreAll) { EXPECT_EQ(kCheckpointFormat, 1) << "keep a golden checkpoint of it, too"; }

}  // namespace
}  // namespace weft
