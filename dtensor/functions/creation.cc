#include "dtensor/functions/creation.h"

#include "dtensor/dispatch.h"
#include "ops/random.h"
#include "runtime/base/philox.h"

namespace weft {

DTensor Full(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape, double value) {
  return Full(context, dtype, shape, value, Layout(shape.ndim(), context->mesh().num_axes()));
}

DTensor Full(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape, double value,
             const Layout& layout) {
  return Create(kFill, context, layout, {.dtype = dtype, .shape = shape}, {.value = value});
}

DTensor RandomNormal(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
                     const Layout& layout, absl::string_view stream) {
  const RandomKey key{
      .seed = context->state().seed(), .stream = StreamOf(stream), .step = context->state().step()};
  return Create(kRandomNormal, context, layout, {.dtype = dtype, .shape = shape},
                {.key = key, .mean = 0, .stddev = 1});
}

}  // namespace weft
