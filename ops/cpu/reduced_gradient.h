#ifndef WEFT_OPS_CPU_REDUCED_GRADIENT_H_
#define WEFT_OPS_CPU_REDUCED_GRADIENT_H_

#include "ops/cpu/dim_rows.h"
#include "ops/cpu/element_blocks.h"
#include "ops/kernel_call.h"
#include "ops/reduce.h"

namespace weft {

// x y dy -> dx for a number y over a set of dims: calls body(spans, first, n) on blocks of x, y, dy and dx,
// in double for f64 and else in float, with y and dy repeated along the dims. `attributes` has dims and
// keepdims.
template <class A, class R, class Body>
void MapReducedGradient(const KernelCall<A, R>& call, const Body& body) {
  const Tensor& x = call.inputs[0];
  const DimMask missing = call.attributes().keepdims ? 0 : call.attributes().dims;
  const Tensor y = WithMissingDims(call.inputs[1], x.ndim(), missing);
  const Tensor dy = WithMissingDims(call.inputs[2], x.ndim(), missing);
  const auto run = [&]<class C>(TypeTag<C>) {
    ForEachElementBlock<C>(call.context.pool, x.shape(),
                           {{x}, {y}, {dy}, {call.outputs[0], ElementStream::kWrite}}, body);
  };
  x.dtype() == DType::kF64 ? run(TypeTag<double>()) : run(TypeTag<float>());
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_REDUCED_GRADIENT_H_
