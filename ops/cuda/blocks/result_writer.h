#ifndef WEFT_OPS_CUDA_BLOCKS_RESULT_WRITER_H_
#define WEFT_OPS_CUDA_BLOCKS_RESULT_WRITER_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/blocks/row_pack.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Writes results of reductions of T, which are doubles: to a row-major tensor of T, of what T is computed in,
// or of f64. One kernel for all three: a result is written once.
template <class T>
class ResultWriter {
 public:
  explicit ResultWriter(const Tensor& tensor) {
    if (tensor.dtype() == kDTypeOf<T>) {
      own_ = tensor.data<T>();
    } else if (tensor.dtype() == kDTypeOf<WideOf<T>>) {
      wide_ = tensor.data<WideOf<T>>();
    } else {
      f64_ = tensor.data<double>();
    }
  }

  __device__ void Write(int64_t i, double value) const {
    if (own_ != nullptr) {
      own_[i] = ConvertElement<T>(value);
    } else if (wide_ != nullptr) {
      wide_[i] = static_cast<WideOf<T>>(value);
    } else {
      f64_[i] = value;
    }
  }

 private:
  T* own_ = nullptr;
  WideOf<T>* wide_ = nullptr;
  double* f64_ = nullptr;
};

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_RESULT_WRITER_H_
