#include "examples/images/image_accuracy.h"

#include <algorithm>
#include <cstdint>

#include "dtensor/functions.h"
#include "ops/elementwise/cast.h"

namespace weft {

double Accuracy(Module& model, PipelineExecutor* pipeline, const ImageSet& set, const AxisList& batch_axes) {
  constexpr int64_t kBatch = 500;
  RankState& state = model.context()->state();
  const NoGradGuard no_grad(state);
  const EvaluationGuard evaluation(state);
  double right = 0;
  for (int64_t first = 0; first < set.count(); first += kBatch) {
    const int64_t count = std::min(kBatch, set.count() - first);
    const ImageBatch batch =
        MakeImageBatch(model.context(), batch_axes, set, count, [&](int64_t i) { return first + i; });
    const DTensor scores =
        pipeline != nullptr ? pipeline->ForwardOutputs({batch.images})[0] : model(batch.images);
    const DTensor label = Call(kConvert, {Argmax(scores, /*dim=*/1)}, {.dtype = DType::kI32});
    right += Sum(Cast(Equal(label, batch.labels), DType::kF32)).Item();
  }
  return right / static_cast<double>(set.count());
}

}  // namespace weft
