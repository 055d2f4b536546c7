#ifndef WEFT_OPS_ELEMENTWISE_BROADCAST_H_
#define WEFT_OPS_ELEMENTWISE_BROADCAST_H_

#include <string>

#include "absl/types/span.h"
#include "ops/declare/reduced_dims.h"
#include "ops/op/op.h"

namespace weft {

// The sum over dims, and the broadcasts that are its transposes: the three differentiate into each other. No
// dims reduced: the operand again. Dtypes and accumulation: as ops/reduce/reduce.h says.
extern const Op<ReduceAttributes> kSum;

struct ShapeAttributes {
  Shape shape;

  bool operator==(const ShapeAttributes&) const = default;
};

// The transpose of broadcasting: sums x to `shape`, which x's shape is a broadcast of, over its leading dims
// and those of extent 1 in `shape`.
extern const Op<ShapeAttributes> kSumTo;

struct BroadcastAttributes {
  Shape shape;               // of the output, global
  DimMask missing_dims = 0;  // dims of `shape` that the operand does not have; its others are equal or 1

  bool operator==(const BroadcastAttributes&) const = default;
};

// Repeats x, of any dtype, along the dims that it lacks and those where its extent is 1: the gradient of a sum,
// without first giving it the lost dims back.
extern const Op<BroadcastAttributes> kBroadcastTo;

// `OpFunctions::rule` of ops that sum over dims.
std::string SumRule(absl::Span<const TensorType> operands, const ReduceAttributes& attributes);

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_BROADCAST_H_
