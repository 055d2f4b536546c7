#include "ops/shape/pad.h"

#include <cstdint>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/shape/slice.h"

namespace weft {
namespace {

TensorTypes InferAs(const char* name, const TensorType& x, const PadAttributes& a) {
  const auto fits = [&](const Shape& widths) {
    return widths.ndim() == x.ndim() && absl::c_all_of(widths, [](int64_t width) { return width >= 0; });
  };
  WEFT_REQUIRE(fits(a.before) && fits(a.after), name, ": expected ", x.ndim(), " widths before and after ",
               x.ToString(), ", none negative, got ", a.before.ToString(), " and ", a.after.ToString());
  TensorType y = x;
  for (int dim = 0; dim < x.ndim(); ++dim) {
    int64_t& extent = y.shape[dim];
    WEFT_REQUIRE(!__builtin_add_overflow(extent, a.before[dim], &extent) &&
                     !__builtin_add_overflow(extent, a.after[dim], &extent),
                 name, ": dim ", dim, " of ", x.ToString(), " would be longer than an extent can be, by ",
                 a.before[dim], " before and ", a.after[dim], " after");
  }
  return {y};
}

TensorTypes Infer(absl::Span<const TensorType> operands, const PadAttributes& a) {
  return InferAs("pad", operands[0], a);
}
TensorTypes InferValue(absl::Span<const TensorType> operands, const PadAttributes& a) {
  return InferAs("pad_value", operands[0], a);
}

// A dim of extent 0 has no first owner to write what is added, so it is whole.
std::string Rule(absl::Span<const TensorType> operands, const PadAttributes& a) {
  const TensorType& x = operands[0];
  if (x.ndim() == 0) return "() -> ()";
  std::vector<std::string> left;
  std::vector<std::string> right;
  for (int dim = 0; dim < x.ndim(); ++dim) {
    const bool padded = a.before[dim] + a.after[dim] > 0;
    left.push_back(padded ? absl::StrCat("x", dim, x.shape[dim] > 0 ? "@" : "!") : absl::StrCat("f", dim));
    right.push_back(absl::StrCat(padded ? "y" : "f", dim));
  }
  return absl::StrCat(absl::StrJoin(left, " "), " -> ", absl::StrJoin(right, " "));
}

template <class R>
void Backward(GradContext<PadAttributes, R>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const PadAttributes& a = ctx.attributes();
  const Shape& shape = ctx.operand_type(0).shape;
  Value dx = ctx.grad();
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    if (a.before[dim] + a.after[dim] == 0) continue;
    dx = ctx.Emit(kSlice, {dx}, {.dim = dim, .start = a.before[dim], .length = shape[dim]});
  }
  ctx.SetGrad(0, dx);
}

std::vector<Sample<PadAttributes>> Samples() {
  return {{{{{DType::kF32, {3, 2, 4}}}}, {.before = {1, 0, 0}, .after = {2, 0, 3}}},
          {{{{DType::kF32, {5}}}}, {.before = {0}, .after = {1}}},
          {{{{DType::kF32, {0, 2}}}}, {.before = {2, 0}, .after = {0, 1}}},
          {{{{DType::kI32, {2, 2}}, -7, 7}}, {.before = {1, 1}, .after = {0, 1}}},
          {{{{DType::kF32, {2, 3}}}}, {.before = {0, 0}, .after = {0, 0}}}};
}

std::vector<Sample<PadAttributes, PadScalars>> ValueSamples() {
  return {{{{{DType::kF32, {3, 2, 4}}}}, {.before = {1, 0, 0}, .after = {2, 0, 3}}, {.value = -2.5}},
          {{{{DType::kF32, {0, 2}}}}, {.before = {2, 0}, .after = {0, 1}}, {.value = 1}},
          {{{{DType::kI64, {5}}, -7, 7}}, {.before = {2}, .after = {2}}, {.value = 3}},
          {{{{DType::kBool, {2, 2}}, 0, 2}}, {.before = {1, 0}, .after = {0, 0}}, {.value = 1}}};
}

}  // namespace

constinit const Op<PadAttributes> kPad = {{
    .name = "pad",
    .operands = "x",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x}",
    .backward = Backward<NoScalars>,
    .samples = Samples,
}};
constinit const Op<PadAttributes, PadScalars> kPadValue = {{
    .name = "pad_value",
    .operands = "x",
    .infer = InferValue,
    .rule = Rule,
    .backward = Backward<PadScalars>,
    .samples = ValueSamples,
}};

}  // namespace weft
