#ifndef WEFT_OPS_CPU_REDUCE_REDUCED_GRADIENT_H_
#define WEFT_OPS_CPU_REDUCE_REDUCED_GRADIENT_H_

#include "absl/container/inlined_vector.h"
#include "ops/cpu/spans/dim_rows.h"
#include "ops/cpu/spans/element_blocks.h"
#include "ops/op/kernel_call.h"
#include "ops/reduce/reduce.h"

namespace weft {

// x, then numbers over a set of dims -> dx: calls body(spans, first, n) on blocks of x, of the others in
// their order, and of dx, in double for f64 and else in float, with the numbers repeated along the dims. They
// come with the dims as extents of 1, or without them. `attributes` has dims and keepdims.
template <class A, class R, class Body>
void MapReducedGradient(const KernelCall<A, R>& call, const Body& body) {
  const Tensor& x = call.inputs[0];
  absl::InlinedVector<Tensor, kMaxElementStreams> tensors = {x};
  for (const Tensor& number : call.inputs.subspan(1)) {
    const bool has_dims = number.ndim() == x.ndim();
    tensors.push_back(has_dims ? number : WithMissingDims(number, x.ndim(), call.attributes().dims));
  }
  absl::InlinedVector<ElementStream, kMaxElementStreams> streams;
  for (const Tensor& tensor : tensors) streams.push_back({tensor});
  streams.push_back({call.outputs[0], ElementStream::kWrite});
  const auto run = [&]<class C>(TypeTag<C>) {
    ForEachElementBlock<C>(call.context.pool, x.shape(), streams, body);
  };
  x.dtype() == DType::kF64 ? run(TypeTag<double>()) : run(TypeTag<float>());
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_REDUCE_REDUCED_GRADIENT_H_
