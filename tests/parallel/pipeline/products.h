// A chain of products, the least that is cut into stages.

#ifndef WEFT_TESTS_PARALLEL_PIPELINE_PRODUCTS_H_
#define WEFT_TESTS_PARALLEL_PIPELINE_PRODUCTS_H_

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "dtensor/nn/segmented_module.h"
#include "parallel/pipeline/executor.h"
#include "parallel/plan.h"
#include "parallel/styles.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {

inline constexpr int64_t kDim = 16;
inline constexpr int64_t kRows = 4;

// x -> x / 2: a layer without parameters.
class Half : public Module {
 public:
  using Module::Module;

 protected:
  DTensor Forward(const DTensor& x) override { return Scale(x, 0.5); }
};

// Products one after another, x -> x W, each with a dropout behind it, and the squared distance from the targets.
// `halves`: those that are Half instead.
class Products : public SegmentedModule {
 public:
  explicit Products(int count, const std::set<int>& halves = {}, double dropout = 0) : dropout_(dropout) {
    for (int i = 0; i < count; ++i) {
      if (halves.count(i) != 0) {
        halves_.push_back(std::make_unique<Half>(this, absl::StrCat("layers.", i)));
        chain_.push_back(halves_.back().get());
        continue;
      }
      layers.push_back(std::make_unique<Linear>(this, absl::StrCat("layers.", i), kDim, kDim,
                                                LinearOptions{.bias = false}));
      chain_.push_back(layers.back().get());
    }
  }
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    return MseLoss(outputs[0], targets);
  }
  DTensor CountOf(const DTensor& targets) override {
    return Full(targets.context(), DType::kF64, Shape(), static_cast<double>(targets.shape().num_elements()));
  }

  std::vector<std::unique_ptr<Linear>> layers;

 protected:
  std::vector<Segment> MakeSegments() override {
    std::vector<Segment> chain;
    for (Module* const each : chain_) {
      chain.push_back({.modules = {each}, .cost = 1, .run = [this, each](const DTensors& x) -> DTensors {
                         const DTensor y = (*each)(x[0]);
                         return {dropout_ > 0 ? Dropout(y, dropout_) : y};
                       }});
    }
    return chain;
  }

 private:
  std::vector<std::unique_ptr<Half>> halves_;
  std::vector<Module*> chain_;
  const double dropout_;
};

// Two products, x -> x W + b. To each another tensor is added, where there is one: a mask that may be left out, say. It goes
// along.
class MaskedProducts : public SegmentedModule {
 public:
  Linear first{this, "layers.0", kDim, kDim}, second{this, "layers.1", kDim, kDim};

  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    return MseLoss(outputs[0], targets);
  }

 protected:
  std::vector<Segment> MakeSegments() override {
    const auto segment = [](Linear& layer) {
      return Segment{.modules = {&layer}, .cost = 1, .run = [&](const DTensors& x) -> DTensors {
                       const DTensor y = layer(x[0]);
                       return {x[1].defined() ? Add(y, x[1]) : y, x[1]};
                     }};
    };
    return {segment(first), segment(second)};
  }
};

// Microbatches of so many rows each, split over axis dp if there is one.
inline std::vector<Microbatch> ProductParts(const IntrusivePtr<MeshContext>& context,
                                            const std::vector<int64_t>& rows) {
  std::vector<Microbatch> parts;
  int64_t offset = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto values = [&](uint64_t seed) {
      Layout layout(2, context->mesh().num_axes());
      const int dp = context->mesh().FindAxis("dp");
      if (dp >= 0) layout = layout.WithShard(dp, 0);
      return DTensor::Distribute(context, RandomF64({rows[i], kDim}, seed), layout);
    };
    parts.push_back({.inputs = {values(2 * i)}, .targets = values(2 * i + 1), .batch_offset = offset});
    offset += rows[i];
  }
  return parts;
}

// Of kRows rows each.
inline std::vector<Microbatch> ProductParts(const IntrusivePtr<MeshContext>& context, int count) {
  return ProductParts(context, std::vector<int64_t>(count, kRows));
}

// As many layers on each stage.
inline const Plan& StagedPlan() {
  static const Plan* const plan = new Plan{{"layers.*", Pipeline("pp")}};
  return *plan;
}

// A total that leaves sums as they are.
inline DTensor One(const IntrusivePtr<MeshContext>& context) {
  return Full(context, DType::kF64, Shape(), 1);
}

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_PIPELINE_PRODUCTS_H_
