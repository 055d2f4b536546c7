#include "runtime/base/reduce_op.h"

#include "runtime/base/error.h"

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

ReduceOp ParseReduceOp(absl::string_view name) {
  for (ReduceOp op : kAllReduceOps) {
    if (ReduceOpName(op) == name) return op;
  }
  ThrowInvalidArgument("unknown reduction '", name, "': expected one of sum, avg, min, max, product");
}

std::ostream& operator<<(std::ostream& out, ReduceOp op) { return out << ReduceOpName(op); }

}  // namespace weft
