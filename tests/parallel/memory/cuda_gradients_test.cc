// Whole gradients on emulated GPUs while the device is behind the host: under plans whose gradients rest split, those of a few
// buckets at a time.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/context/lane.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "parallel/parallelize.h"
#include "parallel/styles.h"
#include "runtime/device/device_queue.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/parallel/memory/offload_ranks.h"

namespace weft {
namespace {

constexpr int64_t kLayers = 12;
constexpr int64_t kDim = 32;
constexpr int64_t kLayerBytes = kDim * kDim * static_cast<int64_t>(sizeof(double));
constexpr int64_t kRanks = 2;

class Chain : public Module {
 public:
  Chain() {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(
          std::make_unique<Linear>(this, absl::StrCat("layers.", i), kDim, kDim,
                                   LinearOptions{.bias = false, .weight = Initializer::Normal(0, 0.3)}));
    }
  }

  std::vector<std::unique_ptr<Linear>> layers;

 protected:
  DTensor Forward(const DTensor& x) override {
    DTensor y = x;
    for (const std::unique_ptr<Linear>& layer : layers) y = Tanh((*layer)(y));
    return y;
  }
};

std::vector<std::vector<double>> TakeGradients(Module& model) {
  std::vector<std::vector<double>> gradients;
  for (Parameter* parameter : model.AllParameters()) {
    gradients.push_back(CloneTensor(parameter->grad().ToLocal(), MakeCpuAllocator()).ToVector<double>());
    parameter->ClearGrad();
  }
  return gradients;
}

// The most bytes of gradients that each rank has in a backward pass during which nothing moves on the gradients' lane, where a
// bucket has one layer.
std::vector<int64_t> PeaksFarAhead(const DataParallelOptions& options) {
  std::vector<int64_t> peaks(kRanks);
  RunFilling(kRanks, [&](World& world) {
    Chain model;
    Plan plan = {{"", DataParallel("dp", options)}};
    plan.set_scheduler({.bucket_mb = 1e-6});
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    const DTensor x = DTensor::Distribute(context, RandomF64({4, kDim}, 1), Layout(2, 1).WithShard(0, 0));
    Backward(Mean(Square(model(x))));  // learns the order
    const std::vector<std::vector<double>> expected = TakeGradients(model);
    const DTensor loss = Mean(Square(model(x)));
    std::atomic<bool> may_run = false;
    Block(world, kLaneQueue + static_cast<int>(Lane::kGrad), may_run);
    world.allocator()->ResetPeak();
    Backward(loss);
    peaks[world.rank()] = world.allocator()->by_kind()[MemoryKind::kGrad].peak;
    may_run = true;
    EXPECT_EQ(TakeGradients(model), expected);
  });
  return peaks;
}

// Beside all that rests, whole ones of the bucket on its way and of the next, and what backward makes meanwhile.
TEST(CudaGradientsTest, WhatRestsSplitIsWholeForABucketOrTwo) {
  constexpr int64_t kAtRest = kLayers * kLayerBytes / kRanks;
  for (const DataParallelOptions& options :
       {DataParallelOptions{.shard_state = true}, DataParallelOptions{.shard_gradient = true}}) {
    for (const int64_t peak : PeaksFarAhead(options)) {
      EXPECT_GE(peak, kAtRest);
      EXPECT_LE(peak, kAtRest + 3 * kLayerBytes);
    }
  }
}

}  // namespace
}  // namespace weft
