#include "dtensor/optim/loss_scale.h"

#include "dtensor/functions.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// A state tensor keeps its memory, which loading writes to.
void Assign(const DTensor& state, const DTensor& value) {
  CopyTensor(value.ToLocal(), state.ToLocal());
  state.impl()->MarkWritten("LossScale::Update");
}

}  // namespace

LossScale::LossScale(const IntrusivePtr<MeshContext>& context, const LossScaleOptions& options)
    : options_(options) {
  const auto check = [](const char* what, bool fits, const char* expected, double given) {
    WEFT_REQUIRE(fits, "LossScale: ", what, ": expected ", expected, ", got ", given);
  };
  check("initial", options.initial > 0, "a number above 0", options.initial);
  check("growth", options.growth > 1, "a number above 1", options.growth);
  check("backoff", options.backoff > 0 && options.backoff < 1, "a number between 0 and 1", options.backoff);
  check("interval", options.interval >= 1, "at least 1", static_cast<double>(options.interval));
  const MemoryKindGuard kind(*context->allocator(), MemoryKind::kState);
  scale_ = Full(context, DType::kF32, Shape(), options.initial);
  good_steps_ = Full(context, DType::kF32, Shape(), 0);
  for (const DTensor& state : {scale_, good_steps_}) state.impl()->writes = MakeIntrusive<WriteLog>();
}

DTensor LossScale::Seed(const DTensor& loss) const {
  WEFT_REQUIRE(loss.shape().num_elements() == 1, "LossScale::Seed: expected a loss of one element, got ",
               loss.ToString());
  const NoGradGuard no_grad(scale_.context()->state());
  const DTensor seed = loss.dtype() == DType::kF32 ? scale_ : Cast(scale_, loss.dtype());
  return loss.ndim() == 0 ? seed : Reshape(seed, loss.shape());
}

void LossScale::Update(const DTensor& norm_squared) {
  const NoGradGuard no_grad(scale_.context()->state());
  const DTensor is_good = IsFinite(norm_squared);
  const DTensor good_steps = Where(is_good, good_steps_ + 1.0, 0.0 * good_steps_);
  const DTensor grown = Scale(scale_, options_.growth);
  const DTensor grows =
      LogicalAnd(GreaterEqual(good_steps, static_cast<double>(options_.interval)), IsFinite(grown));
  const DTensor scale = Where(is_good, Where(grows, grown, scale_), Scale(scale_, options_.backoff));
  const DTensor starts_over = GreaterEqual(good_steps, static_cast<double>(options_.interval));
  Assign(good_steps_, Where(starts_over, 0.0 * good_steps, good_steps));
  Assign(scale_, scale);
}

std::vector<std::pair<std::string, DTensor>> LossScale::State() const {
  return {{"loss_scale.scale", scale_}, {"loss_scale.good_steps", good_steps_}};
}

}  // namespace weft
