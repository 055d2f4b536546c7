// A module that several segments call draws for each of them what it draws on one device, wherever the segments run, and so
// does a loss.

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/nn/layers/layers.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

// Dropout in a module below, which draws under a path of its own.
class Block : public Module {
 public:
  using Module::Module;
  nn::Dropout drop{this, "drop", 0.5};

 protected:
  DTensor Forward(const DTensor& x) override { return drop(Tanh(x)); }
};

// Products, with the same block behind each. `names_below`: every other segment names the block's dropout alone, and runs
// what is around it itself.
class SharedBlock : public SegmentedModule {
 public:
  explicit SharedBlock(int count, bool names_below) : names_below_(names_below) {
    for (int i = 0; i < count; ++i) {
      layers_.push_back(std::make_unique<Linear>(this, absl::StrCat("layers.", i), kDim, kDim));
    }
  }
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    return MseLoss(Dropout(outputs[0], 0.2), targets);
  }
  DTensor CountOf(const DTensor& targets) override {
    return Full(targets.context(), DType::kF64, Shape(), static_cast<double>(targets.shape().num_elements()));
  }

 protected:
  std::vector<Segment> MakeSegments() override {
    std::vector<Segment> chain;
    for (const auto& layer : layers_) {
      if (names_below_ && chain.size() % 2 == 1) {
        chain.push_back(
            {.modules = {layer.get(), &block_.drop}, .cost = 1, .run = [&](const DTensors& x) -> DTensors {
               return {block_.drop(Tanh((*layer)(x[0])))};
             }});
        continue;
      }
      chain.push_back({.modules = {layer.get(), &block_},
                       .cost = 1,
                       .run = [&](const DTensors& x) -> DTensors { return {block_((*layer)(x[0]))}; }});
    }
    return chain;
  }

 private:
  const bool names_below_;
  std::vector<std::unique_ptr<Linear>> layers_;
  Block block_{this, "block"};
};

struct DrawsCase {
  bool names_below = false;
  bool hook_draws = false;  // a hook of the model, in whose call the first segment stands
};

void HangNoise(Module& model) {
  model.AddBeforeForward([](Module&, const DTensor& x) { return Dropout(x, 0.3); });
}

double LossOnOneDevice(const std::vector<int64_t>& rows, const DrawsCase& test) {
  double loss = 0;
  RunRanks(1, [&](World& world) {
    SharedBlock model(4, test.names_below);
    if (test.hook_draws) HangNoise(model);
    const auto context = Parallelize(model, world, DeviceMesh(), {}, {.dtype = DType::kF64});
    for (const Microbatch& part : ProductParts(context, rows)) {
      const BatchOffsetGuard offset(context->state(), part.batch_offset);
      context->state().ResetCallNumbers();
      loss += model.LossOf({model(part.inputs[0])}, part.targets).sum.Item();
    }
  });
  return loss;
}

void ExpectLossOfOneDevice(const std::string& name, const DrawsCase& test) {
  const std::vector<int64_t> rows = {3, 2, 4, 3};
  const double expected = LossOnOneDevice(rows, test);
  RunRanks(2, [&](World& world) {
    SharedBlock model(4, test.names_below);
    if (test.hook_draws) HangNoise(model);
    const PipelineSchedule schedule = GenerateSchedule(name, {.ranks = 2, .microbatches = 4});
    const bool is_v = schedule.num_chunks() == 2 && schedule.stage_rank.back() == 0;
    const Plan plan = {{"layers.*", Pipeline("pp", {.chunks = schedule.num_chunks(),
                                                    .order = is_v ? StageOrder::kV : StageOrder::kLoop})}};
    Parallelize(model, world, DeviceMesh::Parse("pp=2"), plan, {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, schedule);
    const double loss = pipeline.Run(ProductParts(model.context(), rows), One(model.context())).Item();
    EXPECT_NEAR(loss, expected, 1e-12 * expected);
  });
}

class SharedModuleTest : public testing::TestWithParam<const char*> {};

TEST_P(SharedModuleTest, DrawsWhatItDrawsOnOneDevice) { ExpectLossOfOneDevice(GetParam(), {}); }

// Segments have a module in common also where one names a module above it.
TEST_P(SharedModuleTest, AModuleBelowDrawsWhatItDrawsOnOneDevice) {
  ExpectLossOfOneDevice(GetParam(), {.names_below = true});
}

// What the model's own hook draws the first stage alone knows of.
TEST_P(SharedModuleTest, BehindAHookThatDrawsItDrawsWhatItDrawsOnOneDevice) {
  ExpectLossOfOneDevice(GetParam(), {.hook_draws = true});
}

INSTANTIATE_TEST_SUITE_P(Schedules, SharedModuleTest, testing::Values("gpipe", "1f1b", "interleaved", "zbv"),
                         [](const auto& info) { return std::string(info.param); });

// Products, of whose two segments each draws a mask by the same dropout.
class Masks : public Products {
 public:
  Masks() : Products(2) {}
  nn::Dropout drop{this, "drop", 0.5};

 protected:
  std::vector<Segment> MakeSegments() override {
    std::vector<Segment> chain;
    for (const auto& layer : layers) {
      chain.push_back({.modules = {layer.get(), &drop}, .cost = 1, .run = [&](const DTensors& x) -> DTensors {
                         return {drop(FullLike((*layer)(x[0]), 1))};
                       }});
    }
    return chain;
  }
};

// A model that another calls twice in one forward.
TEST(SharedModuleTwiceTest, EverySegmentOfEveryCallDrawsAnew) {
  RunRanks(1, [](World& world) {
    Masks model;
    const auto context = Parallelize(model, world, DeviceMesh(), {}, {.dtype = DType::kF64});
    std::set<std::vector<double>> masks;
    model.drop.AddAfterForward([&](Module&, const DTensor& y) -> DTensor {
      masks.insert(y.ToLocal().ToVector<double>());
      return y;
    });
    const RootCallScope other(context->state(), /*is_root=*/true);
    for (int i = 0; i < 2; ++i) model(ProductParts(context, 1)[0].inputs[0]);
    EXPECT_EQ(masks.size(), 4u);
  });
}

}  // namespace
}  // namespace weft
