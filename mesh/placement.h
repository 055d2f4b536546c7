#ifndef WEFT_MESH_PLACEMENT_H_
#define WEFT_MESH_PLACEMENT_H_

#include <ostream>
#include <string>
#include <variant>

#include "runtime/base/reduce_op.h"

namespace weft {

// The role that a tensor plays along one mesh axis; a closed set of plain values.

// Every rank of the axis holds the whole.
struct Replicate {
  bool operator==(const Replicate&) const = default;
};

// Each rank holds a contiguous piece of tensor dim `dim`: ceil chunks, trailing ones shorter or empty.
// A negative dim counts from the end, until a Layout resolves it.
struct Shard {
  int dim = 0;

  constexpr Shard() = default;
  constexpr explicit Shard(int shard_dim) : dim(shard_dim) {}
  bool operator==(const Shard&) const = default;
};

// Each rank holds a term; the value is the reduction of the terms.
struct Partial {
  ReduceOp op = ReduceOp::kSum;

  constexpr Partial() = default;
  constexpr explicit Partial(ReduceOp reduce_op) : op(reduce_op) {}
  bool operator==(const Partial&) const = default;
};

using Placement = std::variant<Replicate, Shard, Partial>;

// "Replicate", "Shard(0)", "Partial(sum)".
std::string ToString(const Placement& placement);
std::ostream& operator<<(std::ostream& out, const Placement& placement);

}  // namespace weft

#endif  // WEFT_MESH_PLACEMENT_H_
