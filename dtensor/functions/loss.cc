#include "dtensor/functions/loss.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/autocast.h"
#include "dtensor/functions/compare.h"
#include "dtensor/functions/creation.h"
#include "dtensor/functions/elementwise.h"
#include "dtensor/functions/reduce.h"
#include "ops/elementwise/scalar_arithmetic.h"
#include "ops/normalization/cross_entropy.h"

namespace weft {
namespace {

// f32 for halves: where differences and sums are made.
DTensor InSinglePrecision(const DTensor& x) { return x.dtype() == DType::kF64 ? x : Cast(x, DType::kF32); }

}  // namespace

DTensor LossSum::Mean() const {
  PurposeGuard purpose(sum.context()->state(), Purpose::kLoss);
  // Were both Partial, a quotient of terms would mean nothing, and both would be reduced.
  return Div(sum, count.Redistribute(Layout(/*ndim=*/0, count.layout().num_axes())));
}

DTensor LossSum::Over(const DTensor& total) const {
  PurposeGuard purpose(sum.context()->state(), Purpose::kLoss);
  // f16 ends below counts of a usual batch, and bf16 rounds them.
  const DTensor wide = InSinglePrecision(sum);
  return Div(wide, Cast(total, wide.dtype()));
}

DTensor CountTargets(const DTensor& targets, int64_t ignore_index) {
  // A number beside a tensor is a double, which does not hold all that i64 does.
  const ExactTerms index = ExactTermsOf(ignore_index);
  const bool is_split = index.low != 0 && targets.dtype() == DType::kI64;
  const DTensor counts = is_split ? NotEqual(Sub(targets, index.high), index.low)
                                  : NotEqual(targets, static_cast<double>(ignore_index));
  return Sum(Cast(counts, DType::kF64));
}

LossSum CrossEntropy(const DTensor& logits, const DTensor& targets, const CrossEntropyOptions& options) {
  const DTensors outputs =
      CallAll(kCrossEntropy, {logits, targets},
              {.ignore_index = options.ignore_index, .label_smoothing = options.label_smoothing});
  return {.sum = outputs[0], .count = outputs[1].Detach()};
}

LossSum MseLoss(const DTensor& prediction, const DTensor& target) {
  if (Autocasts(prediction)) [[unlikely]] {
    const DTensor operands[] = {AutocastToSingle(prediction), AutocastToSingle(target)};
    const AutocastGuard off(prediction.context()->state(), std::nullopt);
    return MseLoss(operands[0], operands[1]);
  }
  WEFT_REQUIRE(prediction.type() == target.type() && IsFloating(prediction.dtype()),
               "MseLoss: expected a prediction and a target of one floating type, got ",
               prediction.ToString(), " and ", target.ToString());
  const DTensor difference = Sub(InSinglePrecision(prediction), InSinglePrecision(target));
  const DTensor sum = Sum(Square(difference));
  return {.sum = sum, .count = FullLike(sum, static_cast<double>(prediction.shape().num_elements()))};
}

}  // namespace weft
