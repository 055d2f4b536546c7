#ifndef WEFT_OPS_CPU_SPANS_PARALLEL_COPY_H_
#define WEFT_OPS_CPU_SPANS_PARALLEL_COPY_H_

#include <memory>

#include "runtime/base/thread_pool.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// CopyTensor over the pool: any strides on either side, converting the dtype where they differ.
// Errors: as CopyTensor.
void ParallelCopy(ThreadPool& pool, const Tensor& from, const Tensor& to);

// A new row-major tensor with the elements of `from`.
Tensor ParallelClone(ThreadPool& pool, const Tensor& from, const std::shared_ptr<Allocator>& allocator);

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_PARALLEL_COPY_H_
