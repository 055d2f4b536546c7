#include "dtensor/functions/activation.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/autocast.h"
#include "dtensor/functions/shape.h"
#include "ops/elementwise/elementwise.h"
#include "ops/normalization/softmax.h"

namespace weft {
namespace {

DTensor OverDim(const Op<>& op, const DTensor& x, int dim, absl::string_view what) {
  if (Autocasts(x)) [[unlikely]] {
    const DTensor single = AutocastToSingle(x);
    const AutocastGuard off(x.context()->state(), std::nullopt);
    return OverDim(op, single, dim, what);
  }
  const int last = x.ndim() - 1;
  dim = NormalizeDim(dim, x.ndim(), what);
  if (dim == last) return Call(op, {x});
  return Transpose(Call(op, {Transpose(x, dim, last)}), dim, last);
}

}  // namespace

DTensor Relu(const DTensor& x) { return Call(kRelu, {x}); }
DTensor Silu(const DTensor& x) { return Call(kSilu, {x}); }
DTensor Gelu(const DTensor& x) { return Call(kGelu, {x}); }
DTensor GeluExact(const DTensor& x) { return Call(kGelu, {x}, {.exact = true}); }

DTensor Softmax(const DTensor& x, int dim) { return OverDim(kSoftmax, x, dim, "Softmax"); }
DTensor LogSoftmax(const DTensor& x, int dim) { return OverDim(kLogSoftmax, x, dim, "LogSoftmax"); }

}  // namespace weft
