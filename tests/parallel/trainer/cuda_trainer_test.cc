// The trainer on the device cuda, emulated: its kernels run when the host waits for them, so what is pending after a
// step is what the step did not wait for.

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "runtime/launch/run_ranks.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/parallel/trainer/trainer_job.h"

namespace weft {
namespace {

std::vector<StepMetrics> Records(DeviceType device, int num_steps) {
  std::vector<StepMetrics> records;
  RunRanks(1,
           [&](World& world) {
             Job job(world, "", DataPlan::kDdp);
             for (int step = 1; step <= num_steps; ++step) {
               const std::optional<StepMetrics> before = job.trainer->Step(24, [&] { return job.Loss(); });
               EXPECT_EQ(before.has_value(), step > 1);
               if (before) records.push_back(*before);
               EXPECT_EQ(cuda_emulator::NumPending() > 0, device == DeviceType::kCuda) << "step " << step;
             }
             records.push_back(job.trainer->Flush().value());
           },
           {.device = device});
  return records;
}

TEST(CudaTrainerTest, TheHostDoesNotWaitForItsOwnStep) {
  const std::vector<StepMetrics> expected = Records(DeviceType::kCpu, 3);
  const std::vector<StepMetrics> actual = Records(DeviceType::kCuda, 3);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_NEAR(actual[i].loss, expected[i].loss, 1e-12);
    EXPECT_NEAR(actual[i].grad_norm, expected[i].grad_norm, 1e-12);
    EXPECT_TRUE(actual[i].updated);
  }
}

}  // namespace
}  // namespace weft
