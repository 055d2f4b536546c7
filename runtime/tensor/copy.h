#ifndef WEFT_RUNTIME_TENSOR_COPY_H_
#define WEFT_RUNTIME_TENSOR_COPY_H_

#include <memory>

#include "runtime/base/reduce_op.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Copies `from` into `to`, any strides on either side, converting the dtype where they differ (float to
// integer truncates toward zero, anything to bool tests for non-zero; all of it in runtime/tensor/convert.h).
// Packing and unpacking of shards are this call on slices. Between the CPU and another device too: a copy to the CPU is
// there when the call returns. To a meta tensor, from whatever device, nothing is copied.
//
// Cost:   one pass; runs of contiguous elements move as memcpy. On a device the call does not wait; between the CPU and a
//         device it does.
// Errors: InvalidArgument if the shapes differ, for other pairs of devices, or if `to` repeats its elements
//         (Expand). The two must not overlap unless they are the same view.
void CopyTensor(const Tensor& from, const Tensor& to);

// Sets every element of `tensor` (any strides) to `value`, converted to the dtype.
void FillTensor(const Tensor& tensor, double value);

// Combines elementwise: to = op(to, from), for sum, min, max and product (kAvg is a sum here; the caller
// divides). bf16 and f16 combine in float and round once per call. Any strides; same shape and dtype.
// NaN wins in min and max. Integers wrap; of bools sum and max are "or", product and min "and". No-op on meta
// tensors.
//
// Errors: InvalidArgument as CopyTensor, and if the dtypes differ.
void AccumulateTensor(const Tensor& from, const Tensor& to, ReduceOp op);

// A new row-major tensor with the elements of `tensor`, in `dtype` (default: its own), from `allocator`.
Tensor CloneTensor(const Tensor& tensor, const std::shared_ptr<Allocator>& allocator);
Tensor CastTensor(const Tensor& tensor, DType dtype, const std::shared_ptr<Allocator>& allocator);

// `tensor` itself if it lies row-major on the CPU, else a copy that does: what files are written from.
Tensor OnHost(const Tensor& tensor);

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_COPY_H_
