// Training with compressed gradients on ranks with an emulated GPU each: as on CPUs, whether the sums run beside backward or
// not; saved and resumed; steps that are skipped.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "parallel/styles.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/message_of.h"
#include "tests/parallel/compression/compressed_training.h"
#include "tests/parallel/memory/offload_ranks.h"
#include "tests/parallel/scheduler/cuda_training.h"

namespace weft {
namespace {

using cuda_emulator::LeftOut;

constexpr const char* kMethods[] = {
    "bf16", "f16", "int8", "onebit", "topk(0.3)", "topk(0.3, momentum=0.5)", "randomk(0.4)", "powersgd(1)",
};

CudaCase WithMethod(CudaCase of, const std::string& method) {
  of.plan = of.plan.Merge({{"", Communication(method)}});
  return of;
}

// How far apart two runs are, of the largest number in them.
double Apart(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0, distance = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(b[i]));
    distance = std::max(distance, std::abs(a[i] - b[i]));
  }
  return distance / largest;
}

// Kernels of a GPU sum in another order than those of a CPU, in f64; what is made of equal gradients has equal bits.
TEST(CudaCompressedTrainingTest, GpusTrainAsCpusDo) {
  for (const CudaCase& plain : CudaCases()) {
    const std::vector<double> exact = TrainOnGpus(plain, /*overlap=*/true);
    for (const char* method : kMethods) {
      const CudaCase of = WithMethod(plain, method);
      const std::vector<double> expected = TrainOnGpus(of, /*overlap=*/false);
      EXPECT_GT(Apart(expected, exact), 1e-6) << method << ", " << of.name << ": it compresses nothing";
      EXPECT_TRUE(TrainOnGpus(of, /*overlap=*/true) == expected) << method << ", " << of.name;
      EXPECT_LT(Apart(expected, TrainOnCpus(of, /*overlap=*/true)), 1e-9) << method << ", " << of.name;
    }
  }
}

// Where parameters lie on the host, so do their sums, once more.
TEST(CudaCompressedTrainingTest, OffloadChangesNoBit) {
  for (const CudaCase& plain : CudaCases()) {
    CudaCase of = WithMethod(plain, "topk(0.3)");
    const std::vector<double> expected = TrainOnGpus(of, /*overlap=*/true);
    of.plan = of.plan.Merge({{"", Offload({.parameters = true})}});
    EXPECT_TRUE(TrainOnGpus(of, /*overlap=*/true) == expected) << of.name;
  }
}

// What streams wait for each other for: of the rank's stream, and of those that copy.
TEST(CudaCompressedTrainingTest, WaitsForEachStreamLeftOutAreSeen) {
  for (const CudaCase& plain : CudaCases()) {
    const CudaCase of = WithMethod(plain, "bf16");
    const std::vector<double> expected = TrainOnGpus(of, /*overlap=*/true);
    for (const LeftOut waits : {LeftOut::kWaitsOfFirst, LeftOut::kWaitsOfOthers}) {
      cuda_emulator::LeaveOutWaits(waits, /*only=*/1000);
      EXPECT_TRUE(TrainOnGpus(of, /*overlap=*/true) == expected) << of.name;
      const int64_t num_pairs = cuda_emulator::NumWaitingPairs();
      EXPECT_GT(num_pairs, 0) << of.name;
      for (int64_t only = 0; only < num_pairs; ++only) {
        EXPECT_TRUE(cuda_emulator::ShowsInSomeRun(waits, only, [&] { return !HasOutcome(of, expected); }))
            << of.name << (waits == LeftOut::kWaitsOfFirst ? ", of the rank's stream" : ", of other streams")
            << ", stream " << only << " of " << num_pairs;
      }
      cuda_emulator::LeaveOutWaits(LeftOut::kNothing);
    }
  }
}

const std::vector<TrainingPlace>& Places() {
  static const auto* const places = new std::vector<TrainingPlace>{
      {"dp=2", DataPlan::kDdp},       {"dp=2", DataPlan::kFsdp},     {"replica=2,shard=2", DataPlan::kHsdp},
      {"dp=2,tp=2", DataPlan::kFsdp}, {"pp=2,dp=2", DataPlan::kDdp},
  };
  return *places;
}

std::string FileOf(const std::string& name) { return absl::StrCat(testing::TempDir(), "/", name); }

TEST(CudaCompressedTrainingTest, AResumedRunHasTheSameBits) {
  for (const TrainingPlace& place : Places()) {
    for (const char* method : {"int8", "topk(0.1, momentum=0.9)", "powersgd(2)"}) {
      SCOPED_TRACE(absl::StrCat(method, " on ", place.ToString()));
      CompressedTraining run = {.place = place, .method = method, .last = 3, .run_ranks = RunFilling};
      run.save = FileOf("gpus.safetensors");
      run.save_step = 1;
      const TrainingOutcome whole = TrainCompressed(run);
      EXPECT_TRUE(std::all_of(whole.updated.begin(), whole.updated.end(), [](bool is) { return is; }));
      const TrainingOutcome resumed = TrainCompressed({.place = place,
                                                       .method = method,
                                                       .first = 2,
                                                       .last = 3,
                                                       .resume = run.save,
                                                       .run_ranks = RunFilling});
      EXPECT_TRUE(resumed.parameters == whole.parameters);
      EXPECT_TRUE(resumed.state == whole.state);
      // And on CPUs from there: as near as their kernels are.
      const TrainingOutcome on_cpus =
          TrainCompressed({.place = place, .method = method, .first = 2, .last = 3, .resume = run.save});
      EXPECT_LT(Distance(on_cpus.parameters, whole.parameters), 1e-6);
      EXPECT_EQ(on_cpus.grad_bytes, whole.grad_bytes);
    }
  }
}

TEST(CudaCompressedTrainingTest, AStepThatOverflowsKeepsWhatIsYetToBeSent) {
  for (const TrainingPlace& place : Places()) {
    if (place.mesh == "pp=2,dp=2") continue;  // of stages nobody makes a gradient overflow there
    for (const char* method : {"onebit", "topk(0.1, momentum=0.9)", "powersgd(2)"}) {
      SCOPED_TRACE(absl::StrCat(method, " on ", place.ToString()));
      const TrainingOutcome outcome = TrainCompressed({.place = place,
                                                       .method = method,
                                                       .last = 3,
                                                       .dtype = DType::kF32,
                                                       .loss_scale = 1024,
                                                       .overflow_step = 2,
                                                       .run_ranks = RunFilling});
      EXPECT_EQ(outcome.updated, (std::vector<bool>{true, false, true}));
      ASSERT_EQ(outcome.states.size(), 3u);
      for (const auto& [name, values] : outcome.states[1]) {
        if (name == "communication.round") continue;
        EXPECT_TRUE(values == outcome.states[0].at(name)) << name;
      }
      EXPECT_FALSE(outcome.states[2] == outcome.states[1]);
    }
  }
}

// A step that throws when its first microbatch has been summed is forgotten, and what was saved goes on.
TEST(CudaCompressedTrainingTest, TrainingGoesOnFromWhatWasSaved) {
  for (const TrainingPlace& place : {TrainingPlace{"dp=2", DataPlan::kFsdp}}) {
    CompressedTraining run = {.place = place,
                              .method = "topk(0.1, momentum=0.9)",
                              .last = 4,
                              .save = FileOf("failing.safetensors"),
                              .save_step = 1,
                              .microbatches = 2,
                              .run_ranks = RunFilling};
    const TrainingOutcome expected = TrainCompressed(run);
    run.failing_step = 3;
    const TrainingOutcome outcome = TrainCompressed(run);
    EXPECT_TRUE(outcome.parameters == expected.parameters);
    EXPECT_TRUE(outcome.state == expected.state);
  }
}

}  // namespace
}  // namespace weft
