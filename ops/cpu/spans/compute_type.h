#ifndef WEFT_OPS_CPU_SPANS_COMPUTE_TYPE_H_
#define WEFT_OPS_CPU_SPANS_COMPUTE_TYPE_H_

#include <type_traits>

namespace weft {

// The type that kernels on rows of T compute in: bf16 and f16 are for storage only.
template <class T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_COMPUTE_TYPE_H_
