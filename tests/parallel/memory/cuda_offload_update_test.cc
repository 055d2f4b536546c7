// The update of what is offloaded beside an emulated GPU: a few parameters at a time, with their copies under way before and
// behind it.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/dtensor.h"
#include "dtensor/functions.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/adamw.h"
#include "parallel/parallelize.h"
#include "parallel/styles.h"
#include "runtime/device/device_queue.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/parallel/memory/offload_ranks.h"

namespace weft {
namespace {

constexpr int kParameters = 3;
constexpr int64_t kParameterBytes = int64_t{28}
                                    << 20;  // more than is brought at a time: each is updated by itself

class Heavy : public Module {
 public:
  Heavy() {
    for (int i = 0; i < kParameters; ++i) {
      weights_.push_back(std::make_unique<Parameter>(
          this, absl::StrCat("w", i),
          ParameterSpec{.shape = {kParameterBytes / (1024 * static_cast<int64_t>(sizeof(double))), 1024},
                        .initializer = Initializer::Uniform(-1, 1)}));
    }
  }

 protected:
  DTensor Forward(const DTensor& x) override {
    DTensor y = x;
    for (const auto& weight : weights_) y = y + Sum(Square(weight->Value()));
    return y;
  }

 private:
  std::vector<std::unique_ptr<Parameter>> weights_;
};

// What the second memory has when an update begins, beyond what it had when the step did.
struct BeginOfUpdate {
  std::vector<int> parameters;
  int64_t host_bytes = 0;
  bool operator==(const BeginOfUpdate&) const = default;
};
std::ostream& operator<<(std::ostream& out, const BeginOfUpdate& begin) {
  return out << absl::StrJoin(begin.parameters, ",") << " with " << begin.host_bytes;
}

class WatchedAdamW : public AdamW {
 public:
  WatchedAdamW(World& world, std::vector<Parameter*> parameters)
      : AdamW(std::move(parameters), {}), world_(world) {}

  void BeginStep() {
    begins_.clear();
    before_ = LiveBytes();
  }
  const std::vector<BeginOfUpdate>& begins() const { return begins_; }

 protected:
  void Update(absl::Span<const int> indices, double lr, const DTensor& scale) override {
    // Counts of updates are there too, of a granule each.
    const int64_t bytes = (LiveBytes() - before_) / kParameterBytes * kParameterBytes;
    begins_.push_back({std::vector<int>(indices.begin(), indices.end()), bytes});
    AdamW::Update(indices, lr, scale);
  }

 private:
  int64_t LiveBytes() { return world_.host_allocator()->stats().live_bytes; }

  World& world_;
  int64_t before_ = 0;
  std::vector<BeginOfUpdate> begins_;
};

constexpr int kSteps = 2;

// All parameters after the steps, on one rank. `step` makes the update of each.
std::vector<std::vector<double>> Train(World& world, const Plan& plan,
                                       absl::FunctionRef<void(int i, WatchedAdamW&)> step) {
  Heavy model;
  const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=1"), plan, {.dtype = DType::kF64});
  WatchedAdamW optimizer(world, model.AllParameters());
  for (int i = 0; i < kSteps; ++i) {
    Backward(model(Full(context, DType::kF64, Shape(), 0)));
    step(i, optimizer);
    optimizer.ZeroGrad();
  }
  std::vector<std::vector<double>> values;
  for (const Parameter* parameter : model.AllParameters()) {
    values.push_back(CloneTensor(parameter->at_rest().ToLocal(), MakeCpuAllocator()).ToVector<double>());
  }
  return values;
}

TEST(CudaOffloadUpdateTest, TheNextValuesComeAndTheLastGoWhileTheHostUpdates) {
  std::vector<std::vector<double>> expected, actual;
  RunRanks(1, [&](World& world) {
    expected = Train(world, {}, [](int, WatchedAdamW& optimizer) { optimizer.Step(0.1); });
  });
  std::array<std::atomic<bool>, kSteps> may_run = {};  // outlives the queue
  RunFilling(1, [&](World& world) {
    actual = Train(world, {{"", Offload({.state = true})}}, [&](int i, WatchedAdamW& optimizer) {
      for (const Parameter* parameter : optimizer.parameters()) parameter->grad().ToLocal();  // settled
      Block(world, kFromHostQueue, may_run[i]);
      const absl::Cleanup run = [&] { may_run[i] = true; };
      optimizer.BeginStep();
      optimizer.Step(0.1);  // would wait for ever for what has been updated to arrive on the device
      // The next one's value is there, but no later one's; those before have not gone.
      const std::vector<BeginOfUpdate> begins = {
          {{0}, 2 * kParameterBytes}, {{1}, 3 * kParameterBytes}, {{2}, 3 * kParameterBytes}};
      EXPECT_EQ(optimizer.begins(), begins);
      for (const Parameter* parameter : optimizer.parameters()) {
        EXPECT_TRUE(parameter->at_rest().impl()->is_pending()) << parameter->path();
      }
    });
  });
  ASSERT_EQ(expected.size(), static_cast<size_t>(kParameters));
  EXPECT_TRUE(actual == expected) << "other bits than on a CPU that offloads nothing";
}

}  // namespace
}  // namespace weft
