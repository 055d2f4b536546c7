#ifndef WEFT_RUNTIME_BASE_REDUCE_OP_H_
#define WEFT_RUNTIME_BASE_REDUCE_OP_H_

#include <cstdint>
#include <ostream>

#include "absl/strings/string_view.h"

namespace weft {

// How the pieces of a reduction combine: in collectives, and in Partial layouts.
// kAvg is the sum divided by the number of pieces.
enum class ReduceOp : uint8_t { kSum, kAvg, kMin, kMax, kProduct };

inline constexpr ReduceOp kAllReduceOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax,
                                             ReduceOp::kProduct};

// "sum", "avg", "min", "max", "product".
absl::string_view ReduceOpName(ReduceOp op);

std::ostream& operator<<(std::ostream& out, ReduceOp op);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_REDUCE_OP_H_
