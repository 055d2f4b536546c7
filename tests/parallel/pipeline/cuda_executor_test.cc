// Stages on emulated GPUs over a fake NCCL: messages run in streams of their own, and the gradients are those of CPUs.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "runtime/device/cuda/allocator.h"
#include "runtime/device/cuda/check.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/parallel/pipeline/delayed_weights.h"
#include "tests/parallel/pipeline/pipeline_cases.h"
#include "tests/parallel/pipeline/products.h"
#include "tests/parallel/training_run.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using Outcome = std::map<std::string, std::vector<double>>;

// Two steps' loss and gradients of a rank.
void Step(World& world, const std::string& schedule, const std::string& mesh, bool fully_sharded,
          std::mutex& mutex, Outcome& outcome) {
  Products model(4);
  const bool is_v = schedule == "zbv";
  Plan plan = {{"layers.*", Pipeline("pp", {.chunks = is_v ? 2 : 1,
                                            .order = is_v ? StageOrder::kV : StageOrder::kLoop})}};
  if (fully_sharded) {
    plan = {plan.entries()[0], {"layers.*", FullyShard("dp")}};
  }
  Parallelize(model, world, DeviceMesh::Parse(mesh), plan, {.dtype = DType::kF64});
  PipelineExecutor pipeline(model, GenerateSchedule(schedule, {.ranks = 2, .microbatches = 4}));
  const DTensor total = Full(model.context(), DType::kF64, Shape(), 1);
  pipeline.Run(ProductParts(model.context(), 4), total);
  const double loss = pipeline.Run(ProductParts(model.context(), 4), total).Item();
  const double evaluated = pipeline.ForwardLoss(ProductParts(model.context(), 3)).sum.Item();
  std::map<std::string, std::vector<double>> gradients;
  for (const Parameter* parameter : model.AllParameters()) {
    gradients[parameter->path()] =
        CloneTensor(parameter->grad().FullTensor(), MakeCpuAllocator()).ToVector<double>();
  }
  const std::lock_guard<std::mutex> lock(mutex);
  outcome["loss"] = {loss, evaluated};
  outcome.insert(gradients.begin(), gradients.end());
}

// Memory is filled when it is freed, so that what is read too late shows.
void OnEmulatedGpus(int num_ranks, const std::function<void(World&)>& body) {
  RunNcclRanks(num_ranks, body, std::make_shared<FakeNccl>(), std::chrono::minutes(2),
               {.tell = [](const std::string&) {}}, {.fill_freed = true});
}

TEST(CudaExecutorTest, GradientsAreThoseOfCpus) {
  struct Case {
    const char* schedule;
    const char* mesh;
    bool fully_sharded = false;
  };
  for (const Case& of : {Case{"1f1b", "pp=2"}, Case{"zb_h1", "pp=2"}, Case{"zbv", "pp=2"},
                         Case{"zb_h1", "pp=2, dp=2", true}}) {
    const int num_ranks = static_cast<int>(DeviceMesh::Parse(of.mesh).num_ranks());
    std::mutex mutex;
    Outcome expected, outcome;
    RunRanks(num_ranks,
             [&](World& world) { Step(world, of.schedule, of.mesh, of.fully_sharded, mutex, expected); });
    OnEmulatedGpus(num_ranks, [&](World& world) {
      Step(world, of.schedule, of.mesh, of.fully_sharded, mutex, outcome);
    });
    ASSERT_EQ(outcome.size(), 5u) << of.schedule;
    ASSERT_EQ(expected.size(), outcome.size());
    for (const auto& [path, values] : expected) {
      ASSERT_EQ(outcome.at(path).size(), values.size()) << path;
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(outcome.at(path)[i], values[i], 1e-11) << of.schedule << " " << of.mesh << " " << path;
      }
    }
  }
}

// A GPT with dropout, microbatches of unlike sizes and a tied head: chunks in a loop and in a V, pairs, and tensor parallelism
// and FSDP beside them.
TEST(CudaExecutorTest, AGptIsThatOfOneCpu) {
  for (const PipelineCase& of :
       {PipelineCase{.schedule = "interleaved", .mesh = "pp=2", .tied_head = true},
        PipelineCase{.schedule = "dualpipev", .mesh = "pp=2"},
        PipelineCase{.schedule = "1f1b", .mesh = "pp=2, tp=2", .tied_head = true},
        PipelineCase{.schedule = "zbv", .mesh = "pp=2, dp=2", .fully_sharded = true, .tied_head = true}}) {
    PipelineCase test = of;
    test.rows = {3, 1, 2, 3};
    test.layers = 4;
    EXPECT_EQ(absl::StrJoin(DifferencesFromOneDevice(test, {}, OnEmulatedGpus), "\n"), "") << test.ToString();
  }
}

// Updates within the step: one that goes on in a copy, in a stream, while microbatches in flight read what it changes.
TEST(CudaExecutorTest, UpdatesWithinTheStepAreThoseOfOneCpu) {
  for (const char* name : {"pipedream", "pipedream_2bw"}) {
    const PipelineSchedule schedule = GenerateSchedule(name, {.ranks = 2, .microbatches = 6});
    const DelayedJob job = {.dropout = 0.1, .has_uneven_rows = true};
    const TrainingResult expected = WithDelayedWeights(schedule, job);
    for (const char* beside : {"", ", dp=2"}) {
      const TrainingResult result = InStages(schedule, beside, job, FullyShard("dp"), OnEmulatedGpus);
      EXPECT_EQ(absl::StrJoin(Differences(expected, result, kF64Tolerance), "\n"), "") << name << beside;
    }
  }
}

// The most bytes that each rank has in a step during which its device stands still, beyond those from before.
std::map<int, int64_t> PeaksFarAhead(const std::string& schedule, int microbatches) {
  std::map<int, int64_t> peaks;
  std::mutex mutex;
  OnEmulatedGpus(2, [&](World& world) {
    Products model(2);
    Parallelize(model, world, DeviceMesh::Parse("pp=2"), StagedPlan(), {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, GenerateSchedule(schedule, {.ranks = 2, .microbatches = microbatches}));
    const std::vector<Microbatch> parts = ProductParts(model.context(), microbatches);
    const DTensor total = One(model.context());
    const double expected = pipeline.Run(parts, total).Item();  // tells what stages hand on
    Allocator& allocator = *world.allocator();
    CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    allocator.ResetPeak();
    const int64_t before = allocator.stats().live_bytes;
    const auto may_run = std::make_shared<std::atomic<bool>>(false);
    const absl::Cleanup release = [may_run] { *may_run = true; };
    const CudaStreamRef stream = static_cast<CudaAllocator&>(allocator).rank_stream();
    CheckCuda(cuda_emulator::IssueWhenReady(stream.handle(), [may_run] { return may_run->load(); }),
              "IssueWhenReady");
    const DTensor loss = pipeline.Run(parts, total);
    const int64_t peak = allocator.stats().peak_bytes - before;
    *may_run = true;
    EXPECT_EQ(loss.Item(), expected) << schedule;
    const std::lock_guard<std::mutex> lock(mutex);
    peaks[world.rank()] = peak;
  });
  return peaks;
}

// What has been sent is no longer there at the step's end, though the host has issued all of the step before any of it has been
// received.
TEST(CudaExecutorTest, WhatIsSentGoesInTheOrderOfTheDevicesWork) {
  constexpr int64_t kMessage = kRows * kDim * static_cast<int64_t>(sizeof(double));
  for (const char* schedule : {"1f1b", "zb_h1"}) {
    const std::map<int, int64_t> few = PeaksFarAhead(schedule, /*microbatches=*/8);
    const std::map<int, int64_t> many = PeaksFarAhead(schedule, /*microbatches=*/40);
    for (const int rank : {0, 1}) {
      EXPECT_GT(few.at(rank), 0) << schedule;
      EXPECT_LT(many.at(rank), few.at(rank) + 8 * kMessage) << schedule << ", rank " << rank;
    }
  }
}

}  // namespace
}  // namespace weft
