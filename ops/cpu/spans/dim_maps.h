#ifndef WEFT_OPS_CPU_SPANS_DIM_MAPS_H_
#define WEFT_OPS_CPU_SPANS_DIM_MAPS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "mesh/shard_math.h"
#include "ops/op/absent.h"
#include "ops/op/kernel_call.h"

namespace weft {

// How pieces of a tensor become pieces of a rearranged one, one dim at a time: slices, pads, flips, rolls and
// selections, on a dim that is split as on one that is whole.

// For each index of a piece of y along one dim, the index in this rank's piece of x that it takes; or:
inline constexpr int64_t kElsewhere = -1;  // another rank holds it, and gives it
inline constexpr int64_t kNowhere = -2;    // x has no such element
using DimMap = std::vector<int64_t>;

// `source` turns a global index of y along `dim` into one of x, or kNowhere.
DimMap MakeDimMap(const ShardBox& x, const ShardBox& y, int dim, absl::FunctionRef<int64_t(int64_t)> source);

// y[i, j, ...] = x[maps[0][i], maps[1][j], ...]; `nowhere` where a map says so, else kAbsent where one says
// elsewhere. An empty map keeps its dim as it is.
//
// Shape: one map a dim; y is row-major, x of any strides and the same dtype. No-op on meta tensors.
void CopyByMaps(KernelContext& context, const Tensor& x, const Tensor& y, absl::Span<const DimMap> maps,
                double nowhere = 0);

// The elements [start, start + y's extent) of a dim of x: a view of x where the dim is whole, or all of it is
// taken; else a new tensor with what this rank holds of them, and kAbsent in the rest.
Tensor SlicePiece(KernelContext& context, const Tensor& x, const ShardBox& x_box, const ShardBox& y_box,
                  int dim, int64_t start);

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_DIM_MAPS_H_
