#ifndef WEFT_OPS_CPU_SPANS_INDICES_H_
#define WEFT_OPS_CPU_SPANS_INDICES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "mesh/shard_math.h"
#include "ops/op/kernel_call.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Tokens or targets, i32 or i64 of any strides, as row-major i64: `tensor` itself where it is that.
Tensor DenseIndices(const Tensor& tensor, KernelContext& context);

// The global position "[1, 3]" of row-major element `i` of the piece `box`.
std::string GlobalPosition(const ShardBox& box, int64_t i);

// Errors: InvalidArgument "embedding: token 17 at [0, 3] is outside [0, 16)" for the first of `indices`
//         (row-major i64, the piece `box`) outside [0, limit), `ignored` excepted. `noun` is what the op
//         calls an index.
void CheckIndices(absl::string_view op, absl::string_view noun, const Tensor& indices, const ShardBox& box,
                  int64_t limit, std::optional<int64_t> ignored = std::nullopt);

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_INDICES_H_
