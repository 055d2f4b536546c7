#include <cuda_runtime.h>

#include "ops/cuda/reduce/reduced_gradient.h"
#include "ops/cuda/reduce/sum_along.h"
#include "ops/op/kernel.h"
#include "ops/reduce/reduce.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

using Call = KernelCall<ReduceAttributes, NoScalars>;

void Sum(const Call& call) { SumAlong(call, call.inputs[0], call.attributes().dims, call.outputs[0]); }

// Divides by the global count, so that pieces add up.
// The quotient is made once on the host, in double, and multiplies the sum before that is rounded to T.
void Mean(const Call& call) {
  const Shape& global = call.input_boxes[0].global_shape;
  double count = 1;
  for (int dim = 0; dim < global.ndim(); ++dim) {
    if (HasDim(call.attributes().dims, dim)) count *= static_cast<double>(global[dim]);
  }
  SumAlong(call, call.inputs[0], call.attributes().dims, call.outputs[0], {.factor = 1 / count});
}

// By the global shapes: a piece may have an extent of 1 where the whole has not.
void SumTo(const KernelCall<ShapeAttributes, NoScalars>& call) {
  const Shape& from = call.input_boxes[0].global_shape;
  const Shape& to = call.attributes().shape;
  const int leading = from.ndim() - to.ndim();
  DimMask dims = AllDims(leading);
  for (int dim = 0; dim < to.ndim(); ++dim) {
    if (to[dim] != from[leading + dim]) dims |= DimMaskOf({leading + dim});
  }
  SumAlong(call, call.inputs[0], dims, call.outputs[0]);
}

// A view with strides of 0 and one copy: no kernel of its own.
void BroadcastTo(const KernelCall<BroadcastAttributes, NoScalars>& call) {
  const Tensor& y = call.outputs[0];
  const Tensor x = WithReducedDims(call.inputs[0], y.ndim(), call.attributes().missing_dims);
  CopyTensor(x.Expand(y.shape()), y);
}

struct IsExtremum {
  template <class C>
  __device__ C operator()(C x, C y) const {
    return static_cast<C>(x == y);
  }
};

void ExtremumMask(const Call& call) {
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no arithmetic on ", DTypeName(call.inputs[0].dtype()));
    } else {
      MapReducedGradientOnGpu<T, 1>(call, call.attributes().dims, IsExtremum());
    }
  });
}

const RegisterKernel kRegister[] = {
    {kSum, DeviceType::kCuda, Sum},
    {kMean, DeviceType::kCuda, Mean},
    {kSumTo, DeviceType::kCuda, SumTo},
    {kBroadcastTo, DeviceType::kCuda, BroadcastTo},
    {kExtremumMask, DeviceType::kCuda, ExtremumMask},
};

}  // namespace
}  // namespace weft
