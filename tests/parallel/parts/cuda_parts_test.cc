// Parts of a model on the device cuda, beside the same program on one CPU.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/parallel/parts/detector_run.h"

namespace weft {
namespace {

TEST(CudaPartsTest, TrainsAsTheCpuDoes) {
  PartsRun run = DetectorRun({.camera = "dp=2", .lidar = "", .fusion = "tp=2"});
  run.inputs = PartsRun::Inputs::kParts;
  const TrainingResult expected = Train(OnOneDevice(run));
  run.device = DeviceType::kCuda;
  EXPECT_EQ(Differences(expected, Train(run), kF64Tolerance), std::vector<std::string>());
}

}  // namespace
}  // namespace weft
