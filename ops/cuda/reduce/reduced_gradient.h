#ifndef WEFT_OPS_CUDA_REDUCE_REDUCED_GRADIENT_H_
#define WEFT_OPS_CUDA_REDUCE_REDUCED_GRADIENT_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/row_pack.h"
#include "ops/declare/reduced_dims.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/cuda/grid_loop.h"
#include "runtime/tensor/cuda/strided_loops.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// A view of x, which may lack the dims of `missing`, as a tensor of `ndim` dims: those have extent 1.
inline Tensor WithReducedDims(const Tensor& x, int ndim, DimMask missing) {
  if (x.ndim() == ndim) return x;
  Shape shape;
  for (int dim = 0, x_dim = 0; dim < ndim; ++dim) {
    shape.push_back(HasDim(missing, dim) ? 1 : x.shape()[x_dim++]);
  }
  return x.Reshape(shape);
}

// Numbers beside x: of its dtype, or of what it is computed in.
template <class T>
struct NumbersBesideX {
  const T* own;
  const WideOf<T>* wide;

  __device__ WideOf<T> At(int64_t i) const {
    return own != nullptr ? ConvertElement<WideOf<T>>(own[i]) : wide[i];
  }
};

template <class T, int kNumbers>
struct ReducedGradientOperands {
  const T* x;
  NumbersBesideX<T> numbers[kNumbers];
  T* dx;
  StridedLoops<kNumbers + 2> loops;  // x, numbers, dx
  int step;                          // elements of the innermost loop that a thread takes together
  StridedLoops<kNumbers + 2> steps;  // the loops over them
};

template <class T, int kNumbers, class Body, size_t... kPlaces>
__device__ void MakeGradientStep(const ReducedGradientOperands<T, kNumbers>& operands, const Body& body,
                                 int64_t i, std::index_sequence<kPlaces...>) {
  constexpr int kMostSteps = 4;
  int64_t at[kNumbers + 2];
  operands.steps.Offsets(i, at);
  const int inner = operands.loops.num_loops == 0 ? 0 : operands.loops.num_loops - 1;
#pragma unroll
  for (int j = 0; j < kMostSteps; ++j) {
    if (j >= operands.step) continue;
    const auto offset = [&](int operand) { return at[operand] + j * operands.loops.strides[operand][inner]; };
    operands.dx[offset(kNumbers + 1)] =
        ConvertElement<T>(body(ConvertElement<WideOf<T>>(operands.x[offset(0)]),
                               operands.numbers[kPlaces].At(offset(static_cast<int>(kPlaces) + 1))...));
  }
}

template <class T, int kNumbers, class Body>
__global__ void ReducedGradientKernel(const ReducedGradientOperands<T, kNumbers> operands, const Body body) {
  ForEachOfGrid(operands.steps.count, [&](int64_t i) {
    MakeGradientStep(operands, body, i, std::make_index_sequence<kNumbers>());
  });
}

// Issues dx = body(x, numbers...) for every element of operand 0, in what T is computed in, the numbers (the
// other operands) repeated along `dims`: they come with those dims as extents of 1, or without them.
template <class T, int kNumbers, class Body>
void MapReducedGradientOnGpu(const KernelCallBase& call, DimMask dims, const Body& body) {
  const Tensor& x = call.inputs[0];
  if (x.num_elements() == 0) return;
  ReducedGradientOperands<T, kNumbers> operands = {};
  Shape strides[kNumbers + 2];
  operands.x = x.data<T>();
  strides[0] = x.strides();
  for (int i = 0; i < kNumbers; ++i) {
    const Tensor numbers = WithReducedDims(call.inputs[i + 1], x.ndim(), dims).Expand(x.shape());
    if (numbers.dtype() == kDTypeOf<T>) {
      operands.numbers[i].own = numbers.template data<T>();
    } else {
      operands.numbers[i].wide = numbers.template data<WideOf<T>>();
    }
    strides[i + 1] = numbers.strides();
  }
  operands.dx = call.outputs[0].data<T>();
  strides[kNumbers + 1] = call.outputs[0].strides();
  operands.loops = MakeStridedLoops(x.shape(), strides);
  operands.steps = operands.loops;
  operands.step = 1;
  const int last = operands.loops.num_loops - 1;
  for (int step : {4, 2}) {
    if (last < 0 || operands.step > 1 || operands.loops.extents[last] % step != 0) continue;
    operands.step = step;
    operands.steps.count /= step;
    operands.steps.extents[last] /= step;
    for (auto& of_operand : operands.steps.strides) of_operand[last] *= step;
  }
  LaunchCuda(KernelStream(call), GridOver(operands.steps.count), ReducedGradientKernel<T, kNumbers, Body>,
             operands, body);
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_REDUCE_REDUCED_GRADIENT_H_
