#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "ops/cuda/blocks/row_tensors.h"
#include "ops/cuda/reduce/reduced_gradient.h"
#include "ops/cuda/reduce/sum_along.h"
#include "ops/declare/reduced_dims.h"
#include "ops/op/kernel.h"
#include "ops/reduce/variance.h"

namespace weft {
namespace {

using Call = KernelCall<VarianceAttributes, NoScalars>;

// Of the global count: the gradient of a piece is divided as that of the whole is.
double Divisor(const ShardBox& box, const VarianceAttributes& a) {
  return std::max(0.0, static_cast<double>(ReducedCount(box.global_shape, a.dims)) - a.correction);
}

// Two passes over x, since one that sums x and x^2 would cancel where the mean is large beside the deviation
// (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983). Squares in double: those
// of floats leave float's range long before their root does.
template <bool kRoot>
void Variance(const Call& call) {
  const Tensor& x = call.inputs[0];
  const Tensor& mean = call.outputs[1];
  const DimMask dims = call.attributes().dims;
  SumAlong(call, x, dims, mean, {.factor = 1 / static_cast<double>(ReducedCount(x.shape(), dims))});
  const double divisor = Divisor(call.input_boxes[0], call.attributes());
  SumAlong(call, x, dims, call.outputs[0],
           {.factor = 1 / divisor, .take_root = kRoot, .around = mean, .in_double = true});
}

void MeanStatistic(const KernelCall<ReduceAttributes, NoScalars>& call) {
  const DimMask dims = call.attributes().dims;
  const auto count = static_cast<double>(ReducedCount(call.input_boxes[0].global_shape, dims));
  SumAlong(call, call.inputs[0], dims, call.outputs[0], {.factor = 1 / count});
}

void CenteredSquares(const KernelCall<ReduceAttributes, NoScalars>& call) {
  SumAlong(call, call.inputs[0], call.attributes().dims, call.outputs[0],
           {.around = PackedTensor(call.inputs[1], call.context), .in_double = true});
}

// numerator / divisor, nan where nothing is left to divide by: an infinite factor would not be linear in dy.
double GradientScale(double numerator, const ShardBox& box, const VarianceAttributes& a) {
  const double divisor = Divisor(box, a);
  return divisor > 0 ? numerator / divisor : std::nan("");
}

struct VarianceSlope {
  template <class C>
  __device__ C operator()(C x, C mean, C dy) const {
    return dy * (x - mean) * static_cast<C>(scale);
  }

  double scale;
};

// The quotient first: where the deviation is tiny, dy * (x - mean) might underflow.
struct StdSlope {
  template <class C>
  __device__ C operator()(C x, C mean, C y, C dy) const {
    return y == 0 ? C(0) : dy * ((x - mean) / y * static_cast<C>(scale));
  }

  double scale;
};

void VarianceGrad(const Call& call) {
  const VarianceSlope slope = {GradientScale(2, call.input_boxes[0], call.attributes())};
  VisitFloating(call.inputs[0].dtype(), "variance_grad", [&](auto tag) {
    MapReducedGradientOnGpu<typename decltype(tag)::type, 2>(call, call.attributes().dims, slope);
  });
}

void StdGrad(const Call& call) {
  const StdSlope slope = {GradientScale(1, call.input_boxes[0], call.attributes())};
  VisitFloating(call.inputs[0].dtype(), "std_grad", [&](auto tag) {
    MapReducedGradientOnGpu<typename decltype(tag)::type, 3>(call, call.attributes().dims, slope);
  });
}

const RegisterKernel kRegister[] = {
    {kVariance, DeviceType::kCuda, Variance<false>},
    {kStd, DeviceType::kCuda, Variance<true>},
    {kMeanStatistic, DeviceType::kCuda, MeanStatistic},
    {kCenteredSquares, DeviceType::kCuda, CenteredSquares},
};
const RegisterKernel kRegisterGrads[] = {
    {kVarianceGrad, DeviceType::kCuda, VarianceGrad},
    {kStdGrad, DeviceType::kCuda, StdGrad},
};

}  // namespace
}  // namespace weft
