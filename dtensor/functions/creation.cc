#include "dtensor/functions/creation.h"

#include <cmath>

#include "dtensor/dispatch.h"
#include "dtensor/functions/random_key.h"
#include "mesh/redistribution/mesh_transfer.h"
#include "ops/creation/random.h"
#include "runtime/tensor/convert.h"

namespace weft {
namespace {

Layout LayoutOr(const Layout& layout, const MeshContext& context, const Shape& shape) {
  return layout == Layout() ? Layout(shape.ndim(), context.mesh().num_axes()) : layout;
}

RandomKey KeyOf(RankState& state, absl::string_view stream) {
  return stream.empty() ? NextRandomKey(state) : NamedRandomKey(state, stream);
}

// The width of [0, 1) for a dtype. Uniforms are made in f32, and a half would round the last of them to 1; with
// this width the greatest, 1 - 2^-24, rounds to the greatest half below 1.
double UniformWidth(DType dtype) {
  return dtype == DType::kBF16 ? 1 - 0x1p-9 : dtype == DType::kF16 ? 1 - 0x1p-12 : 1;
}

// Whether a number that is finite stays so in a floating dtype.
bool StaysFinite(DType dtype, double number) {
  return VisitFloating(dtype, "Full", [&](auto tag) {
    const auto rounded = ConvertElement<typename decltype(tag)::type>(number);
    return !std::isfinite(number) || std::isfinite(ConvertElement<double>(rounded));
  });
}

// Whether a number is one of the dtype's but for rounding: no finite number is infinite there.
bool Holds(DType dtype, double number) {
  if (IsFloating(dtype)) return StaysFinite(dtype, number);
  if (dtype == DType::kBool) return number == 0 || number == 1;
  if (number != std::trunc(number)) return false;
  if (dtype == DType::kU8) return number >= 0 && number <= 255;
  const double bound = std::ldexp(1, 8 * static_cast<int>(ItemSize(dtype)) - 1);
  return number >= -bound && number < bound;
}

}  // namespace

void RequireFinite(absl::string_view function, DType dtype, double number) {
  WEFT_REQUIRE(!IsFloating(dtype) || StaysFinite(dtype, number), function, ": ", DTypeName(dtype),
               " cannot hold the number ", number);
}

DTensor Full(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape, double value,
             const Layout& layout) {
  RequireFinite("Full", dtype, value);
  return Create(kFill, context, LayoutOr(layout, *context, shape), {.dtype = dtype, .shape = shape},
                {.value = value});
}

DTensor Zeros(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
              const Layout& layout) {
  return Full(context, dtype, shape, 0, layout);
}

DTensor Ones(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
             const Layout& layout) {
  return Full(context, dtype, shape, 1, layout);
}

DTensor Arange(const IntrusivePtr<MeshContext>& context, DType dtype, double start, double end, double step,
               const Layout& layout) {
  WEFT_REQUIRE(dtype != DType::kBool, "Arange: expected a numeric dtype, got bool");
  WEFT_REQUIRE(std::isfinite(start) && std::isfinite(end) && std::isfinite(step) && step != 0 &&
                   (end - start) / step >= 0,
               "Arange: no steps of ", step, " lead from ", start, " to ", end);
  WEFT_REQUIRE(IsFloating(dtype) || (start == std::trunc(start) && step == std::trunc(step)),
               "Arange: expected whole numbers for ", DTypeName(dtype), ", got ", start, " and steps of ",
               step);
  const double count = std::ceil((end - start) / step);
  WEFT_REQUIRE(count < 0x1p63, "Arange: steps of ", step, " from ", start, " to ", end,
               " are more than a dim can have");
  const Shape shape = {static_cast<int64_t>(count)};
  return Create(kArange, context, LayoutOr(layout, *context, shape), {.dtype = dtype, .shape = shape},
                {.start = start, .step = step});
}

DTensor RandomUniform(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
                      const Layout& layout, absl::string_view stream) {
  return Create(kRandomUniform, context, LayoutOr(layout, *context, shape), {.dtype = dtype, .shape = shape},
                {.key = KeyOf(context->state(), stream),
                 .low = 0,
                 .high = UniformWidth(dtype),
                 .batch_offset = context->state().batch_offset()});
}

DTensor RandomNormal(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
                     const Layout& layout, absl::string_view stream) {
  return Create(kRandomNormal, context, LayoutOr(layout, *context, shape), {.dtype = dtype, .shape = shape},
                {.key = KeyOf(context->state(), stream),
                 .mean = 0,
                 .stddev = 1,
                 .batch_offset = context->state().batch_offset()});
}

DTensor Bernoulli(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
                  double probability, const Layout& layout, absl::string_view stream) {
  return Create(kBernoulli, context, LayoutOr(layout, *context, shape), {.dtype = dtype, .shape = shape},
                {.key = KeyOf(context->state(), stream),
                 .probability = probability,
                 .batch_offset = context->state().batch_offset()});
}

DTensor Bernoulli(const DTensor& probability, absl::string_view stream) {
  RankState& state = probability.context()->state();
  return Call(kBernoulliOf, {probability.Detach()}, {},
              {.key = KeyOf(state, stream), .batch_offset = state.batch_offset()});
}

DTensor FullLike(const DTensor& x, double value) {
  return Full(x.context(), x.dtype(), x.shape(), value, WithoutPartial(x.layout()));
}
DTensor ZerosLike(const DTensor& x) { return FullLike(x, 0); }
DTensor OnesLike(const DTensor& x) { return FullLike(x, 1); }
DTensor RandomUniformLike(const DTensor& x, absl::string_view stream) {
  return RandomUniform(x.context(), x.dtype(), x.shape(), WithoutPartial(x.layout()), stream);
}
DTensor RandomNormalLike(const DTensor& x, absl::string_view stream) {
  return RandomNormal(x.context(), x.dtype(), x.shape(), WithoutPartial(x.layout()), stream);
}

DTensor NumberLike(const DTensor& x, double number) {
  WEFT_REQUIRE(Holds(x.dtype(), number), DTypeName(x.dtype()), " cannot hold the number ", number, " beside ",
               x.ToString(), "; convert the tensor first");
  return Full(x.context(), x.dtype(), {}, number);
}

}  // namespace weft
