#include "dtensor/optim/loss_scale.h"

#include <cmath>
#include <limits>

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
  const bool is_f32 = options.initial > 0 && options.initial <= std::numeric_limits<float>::max();
  check("initial", is_f32, "a number above 0 that f32 holds", options.initial);
  check("growth", options.growth > 1 && std::isfinite(options.growth), "a number above 1", options.growth);
  check("backoff", options.backoff > 0 && options.backoff < 1, "a number between 0 and 1", options.backoff);
  check("interval", options.interval >= 0, "at least 0", static_cast<double>(options.interval));
  check("min", options.min >= 0 && options.min <= options.initial, "a number from 0 to the initial scale",
        options.min);
  check("hysteresis", options.hysteresis >= 1, "at least 1", options.hysteresis);
  const MemoryKindGuard kind(*context->allocator(), MemoryKind::kState);
  scale_ = Full(context, DType::kF32, Shape(), options.initial);
  good_steps_ = Full(context, DType::kF32, Shape(), 0);
  if (options.hysteresis > 1) patience_ = Full(context, DType::kF32, Shape(), options.hysteresis);
  for (const auto& [name, state] : State()) state.impl()->writes = MakeIntrusive<WriteLog>();
}

DTensor LossScale::Seed(const DTensor& loss) const {
  WEFT_REQUIRE(loss.shape().num_elements() == 1, "LossScale::Seed: expected a loss of one element, got ",
               loss.ToString());
  const NoGradGuard no_grad(scale_.context()->state());
  const DTensor seed = loss.dtype() == DType::kF32 ? scale_ : Cast(scale_, loss.dtype());
  return loss.ndim() == 0 ? seed : Reshape(seed, loss.shape());
}

void LossScale::Update(const DTensor& norm_squared, const DTensor& counted) {
  const NoGradGuard no_grad(scale_.context()->state());
  if (options_.interval == 0) {
    Assign(scale_, Full(scale_.context(), DType::kF32, Shape(), options_.initial));
    return;
  }
  const DTensor is_step = counted.defined() ? Greater(counted, 0.0) : DTensor();
  const auto assign = [&](const DTensor& state, const DTensor& value) {
    Assign(state, is_step.defined() ? Where(is_step, value, state) : value);
  };
  const DTensor is_good = IsFinite(norm_squared);
  const DTensor good_steps = Where(is_good, good_steps_ + 1.0, 0.0 * good_steps_);
  const DTensor grown = Scale(scale_, options_.growth);
  const DTensor grows =
      LogicalAnd(GreaterEqual(good_steps, static_cast<double>(options_.interval)), IsFinite(grown));
  const DTensor starts_over = GreaterEqual(good_steps, static_cast<double>(options_.interval));
  DTensor shrunk = Scale(scale_, options_.backoff);
  if (options_.min > 0) shrunk = Maximum(shrunk, options_.min);
  if (patience_.defined()) {
    const DTensor is_last = LessEqual(patience_, 1.0);
    shrunk = Where(is_last, shrunk, scale_);
    const DTensor after_overflow = Where(is_last, patience_, patience_ - 1.0);
    const DTensor after_good = Where(starts_over, static_cast<double>(options_.hysteresis), patience_);
    assign(patience_, Where(is_good, after_good, after_overflow));
  }
  const DTensor scale = Where(is_good, Where(grows, grown, scale_), shrunk);
  assign(good_steps_, Where(starts_over, 0.0 * good_steps, good_steps));
  assign(scale_, scale);
}

std::vector<std::pair<std::string, DTensor>> LossScale::State() const {
  std::vector<std::pair<std::string, DTensor>> state = {{"loss_scale.scale", scale_},
                                                        {"loss_scale.good_steps", good_steps_}};
  if (patience_.defined()) state.push_back({"loss_scale.patience", patience_});
  return state;
}

}  // namespace weft
