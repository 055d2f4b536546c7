// A chain of products, the least that is cut into stages.

#ifndef WEFT_TESTS_PARALLEL_PIPELINE_PRODUCTS_H_
#define WEFT_TESTS_PARALLEL_PIPELINE_PRODUCTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "dtensor/nn/segmented_module.h"
#include "parallel/pipeline/executor.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {

inline constexpr int64_t kDim = 16;
inline constexpr int64_t kRows = 4;

// Products one after another, x -> x W, and the squared distance from the targets.
class Products : public SegmentedModule {
 public:
  explicit Products(int count) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(std::make_unique<Linear>(this, absl::StrCat("layers.", i), kDim, kDim,
                                                LinearOptions{.bias = false}));
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
    for (const auto& each : layers) {
      chain.push_back({.modules = {each.get()}, .cost = 1, .run = [&each](const DTensors& x) -> DTensors {
                         return {(*each)(x[0])};
                       }});
    }
    return chain;
  }
};

// Microbatches of kRows rows, split over axis dp if there is one.
inline std::vector<Microbatch> ProductParts(const IntrusivePtr<MeshContext>& context, int count) {
  std::vector<Microbatch> parts;
  for (int i = 0; i < count; ++i) {
    const auto rows = [&](uint64_t seed) {
      Layout layout(2, context->mesh().num_axes());
      const int dp = context->mesh().FindAxis("dp");
      if (dp >= 0) layout = layout.WithShard(dp, 0);
      return DTensor::Distribute(context, RandomF64({kRows, kDim}, seed), layout);
    };
    parts.push_back({.inputs = {rows(2 * i)}, .targets = rows(2 * i + 1), .batch_offset = i * kRows});
  }
  return parts;
}

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_PIPELINE_PRODUCTS_H_
