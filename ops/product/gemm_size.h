#ifndef WEFT_OPS_PRODUCT_GEMM_SIZE_H_
#define WEFT_OPS_PRODUCT_GEMM_SIZE_H_

#include <cstdint>

namespace weft {

// The extents of a matrix product: [m, k] x [k, n] -> [m, n].
struct GemmSize {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;

  bool operator==(const GemmSize&) const = default;
};

}  // namespace weft

#endif  // WEFT_OPS_PRODUCT_GEMM_SIZE_H_
