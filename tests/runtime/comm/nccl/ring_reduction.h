#ifndef WEFT_TESTS_RUNTIME_COMM_NCCL_RING_REDUCTION_H_
#define WEFT_TESTS_RUNTIME_COMM_NCCL_RING_REDUCTION_H_

#include <cstdint>
#include <vector>

#include "runtime/comm/nccl/nccl_api.h"

namespace weft {

// The reduction of `inputs` as a ring of their owners makes it: each of as many chunks starts at another, and
// every step rounds to the type. Bytes of the result.
std::vector<char> ReduceAroundRing(NcclType type, NcclOp op, const std::vector<const void*>& inputs,
                                   int64_t count);

int64_t NcclTypeSize(NcclType type);

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_COMM_NCCL_RING_REDUCTION_H_
