#include "runtime/base/reduce_op.h"

namespace weft {

absl::string_view ReduceOpName(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
  }
  return "?";
}

std::ostream& operator<<(std::ostream& out, ReduceOp op) { return out << ReduceOpName(op); }

}  // namespace weft
