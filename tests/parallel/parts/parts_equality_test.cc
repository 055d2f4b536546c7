// A model whose parts lie on ranks of their own, each under its own styles, trains as the same program on one device: loss,
// norm and every gradient in f64.

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/parallel/parts/detector_run.h"
#include "tests/parallel/parts/parts_run.h"

namespace weft {
namespace {

// The run on one device, trained once for all that share it.
const TrainingResult& Reference(const PartsRun& run) {
  static std::map<std::string, TrainingResult> references;
  const std::string key = absl::StrCat(run.adamw, " ", absl::StrJoin(run.rows, ","), " ", run.steps, " ",
                                       run.make_batch(0, 1).inputs.size(), " ", static_cast<int>(run.dtype));
  const auto [found, is_new] = references.try_emplace(key);
  if (is_new) found->second = Train(OnOneDevice(run));
  return found->second;
}

void ExpectEqual(const PartsRun& run) {
  const TrainingResult& expected = Reference(run);
  const TrainingResult result = Train(run);
  const std::vector<std::string> differences = Differences(expected, result, kF64Tolerance);
  EXPECT_TRUE(differences.empty()) << differences.size() << " differences:\n"
                                   << absl::StrJoin(differences, "\n") << "\nunder\n"
                                   << run.plan.ToString();
  EXPECT_EQ(result.gradients.at(1).size(), expected.gradients.at(1).size());
  testing::Test::RecordProperty("deviation", DeviationSummary(expected, result));
}

struct PartsCase {
  std::string name;
  PerceptionMeshes meshes;
  PartsRun::Inputs inputs = PartsRun::Inputs::kWhole;
  std::vector<int64_t> rows = {5};
};

std::ostream& operator<<(std::ostream& out, const PartsCase& test) { return out << test.name; }

class PartsEqualityTest : public testing::TestWithParam<PartsCase> {
 protected:
  PartsRun Run() const {
    PartsRun run = DetectorRun(GetParam().meshes);
    run.inputs = GetParam().inputs;
    run.rows = GetParam().rows;
    return run;
  }
};

TEST_P(PartsEqualityTest, AdamWWithClipping) { ExpectEqual(Run()); }

TEST_P(PartsEqualityTest, Sgd) {
  PartsRun run = Run();
  run.adamw = false;
  ExpectEqual(run);
}

using enum PartsRun::Inputs;

INSTANTIATE_TEST_SUITE_P(Meshes, PartsEqualityTest,
                         testing::Values(PartsCase{"one_rank_each", {"", "", ""}},
                                         PartsCase{"one_rank_each_split_inputs", {"", "", ""}, kSplit},
                                         PartsCase{"each_style_once", {"dp=2", "fs=2", "tp=2"}, kParts},
                                         PartsCase{"each_style_elsewhere", {"tp=2", "dp=2", "fs=2"}, kSplit},
                                         // 2, 2 and 1 rows of the camera's to one rank of the fusion's.
                                         PartsCase{"three_to_one", {"dp=3", "", ""}, kParts},
                                         // Two rows of five on one rank each, and three on none.
                                         PartsCase{"empty_shards", {"fs=4", "dp=3", "tp=2"}, kSplit, {2}},
                                         PartsCase{"two_axes", {"dp=2,tp=2", "", "dp=3"}, kWhole},
                                         PartsCase{"fsdp_over_tp", {"fs=2,tp=2", "tp=2", "fs=2"}, kSplit},
                                         PartsCase{"microbatches", {"dp=2", "fs=2", ""}, kParts, {2, 3}},
                                         PartsCase{
                                             "uneven_microbatches", {"fs=2", "", "dp=2"}, kSplit, {2, 3, 2}}),
                         [](const auto& info) { return info.param.name; });

// Other plans than the example's: an axis beside that of the parts, which all share; two parts of the model on the same ranks;
// an entry for all parts that have the axis.
TEST(PartsPlansTest, AnAxisBesideTheParts) {
  PartsRun run = DetectorRun({});
  run.mesh = DeviceMesh::Parse("rep=2, gpus=4");
  run.plan = {
      {"camera", On("gpus", 0, 2, "fs=2")}, {"lidar", On("gpus", 2, 1)},  {"fusion", On("gpus", 3, 1)},
      {"heads", On("gpus", 3, 1)},          {"camera", FullyShard("fs")}, {"", DataParallel("rep")},
  };
  for (const auto inputs : {kWhole, kSplit, kParts}) {
    run.inputs = inputs;
    ExpectEqual(run);
  }
}

TEST(PartsPlansTest, PartsOnTheSameRanks) {
  PartsRun run = DetectorRun({});
  run.mesh = DeviceMesh::Parse("gpus=3");
  run.plan = {
      {"camera", On("gpus", 0, 2, "a=2")},
      {"fusion", On("gpus", 0, 2, "a=2")},
      {"heads", On("gpus", 0, 2, "a=2")},
      {"lidar", On("gpus", 2, 1)},
      {"", FullyShard("a")},
  };
  ExpectEqual(run);
}

TEST(PartsPlansTest, TheAxisFirst) {  // ranks of a part are not neighbours
  PartsRun run = DetectorRun({});
  run.mesh = DeviceMesh::Parse("gpus=3, rep=2");
  run.plan = {
      {"camera", On("gpus", 1, 1)},
      {"lidar", On("gpus", 2, 1)},
      {"fusion", On("gpus", 0, 1)},
      {"heads", On("gpus", 0, 1)},
      {"*", DataParallel("rep", {.shard_state = true})},
  };
  run.inputs = kSplit;
  ExpectEqual(run);
}

TEST(PartsPlansTest, RecomputedAndInHalves) {
  PartsRun run = DetectorRun({"dp=2", "fs=2", ""});
  std::vector<PlanEntry> entries = run.plan.entries();
  entries.push_back({"camera", Recompute()});
  entries.push_back({"lidar.layer3", Recompute()});
  run.plan = Plan(entries);
  ExpectEqual(run);
}

// A run goes on elsewhere as it would have at home: from one file, and from a folder to which every rank writes.
class PartsCheckpointTest : public testing::TestWithParam<bool> {};

TEST_P(PartsCheckpointTest, GoesOnOnOtherParts) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/parts_checkpoint_", GetParam());
  std::filesystem::create_directories(folder);
  const std::string on_parts = folder + "/on_parts", at_home = folder + "/at_home";
  PartsRun whole = OnOneDevice(DetectorRun({}));
  whole.in_folders = GetParam();
  whole.steps = 4;
  const TrainingResult expected = Train(whole);
  const auto saves = [&](PartsRun run, const std::string& path) {
    run.in_folders = GetParam();
    run.save = path;
    Train(run);
  };
  const auto goes_on = [&](PartsRun run, const std::string& path) {
    run.in_folders = GetParam();
    run.steps = 2;
    run.load = path;
    run.first_step = 3;
    const TrainingResult rest = Train(run);
    for (int i = 0; i < 2; ++i) {
      EXPECT_NEAR(rest.losses[i], expected.losses[2 + i], 1e-12 * std::abs(expected.losses[2 + i]));
      EXPECT_NEAR(rest.grad_norms[i], expected.grad_norms[2 + i], 1e-11 * expected.grad_norms[2 + i]);
    }
  };
  saves(DetectorRun({"dp=2,tp=2", "fs=3", "tp=2"}), on_parts);
  saves(OnOneDevice(DetectorRun({})), at_home);
  goes_on(DetectorRun({"", "dp=2", "fs=2"}), on_parts);
  goes_on(OnOneDevice(DetectorRun({})), on_parts);
  goes_on(DetectorRun({"fs=2", "", "tp=2"}), at_home);
  std::filesystem::remove_all(folder);
}

// The count of rounds, by which int8 draws, is another part's than the first rank's, which compresses nothing.
TEST_P(PartsCheckpointTest, ACompressedPartGoesOnWithTheSameBits) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/compressed_parts_", GetParam());
  std::filesystem::create_directories(folder);
  PartsRun run = DetectorRun({"", "dp=2", ""});
  run.plan = run.plan.Merge({{"lidar", Communication("int8")}});
  run.in_folders = GetParam();
  PartsRun whole = run, first = run, rest = run;
  whole.steps = 4;
  first.save = rest.load = folder + "/checkpoint";
  rest.first_step = 3;
  const TrainingResult expected = Train(whole);
  Train(first);
  const TrainingResult result = Train(rest);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(result.losses[i], expected.losses[2 + i]);
    EXPECT_EQ(result.grad_norms[i], expected.grad_norms[2 + i]);
    EXPECT_EQ(result.gradients.at(1 + i), expected.gradients.at(3 + i));
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Folders, PartsCheckpointTest, testing::Bool());

}  // namespace
}  // namespace weft
