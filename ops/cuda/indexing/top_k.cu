#include <limits>

#include "ops/cuda/indexing/sort_rows.h"
#include "ops/indexing/top_k.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<TopKAttributes, NoScalars>;

// What no element is worse than: it stands where a piece has fewer than k. As in ops/cpu/indexing/top_k.cc.
double WorstOf(DType dtype, bool largest) {
  if (IsFloating(dtype)) {
    return largest ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (dtype == DType::kBool) return largest ? 0 : 1;
  // Saturates to the type's own.
  return largest ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
}

// The whole row is sorted for its first k: one network serves sort and top_k, whatever k is.
void Select(const Call& call, const Tensor& names, int64_t first) {
  const TopKAttributes& a = call.attributes();
  CudaSortRows(call, call.inputs[0],
               {.dim = a.dim,
                .descending = a.largest,
                .names = names,
                .first = first,
                .rest = WorstOf(call.inputs[0].dtype(), a.largest),
                .rest_name = std::numeric_limits<int64_t>::max()},
               call.outputs[0], call.outputs[1]);
}

// Whole or a piece: indices count from the beginning of the whole.
void TopKCandidates(const Call& call) {
  Select(call, Tensor(), call.input_boxes[0].offset[call.attributes().dim]);
}

void TopKMerge(const Call& call) { Select(call, call.inputs[1], /*first=*/0); }

const RegisterKernel kRegister[] = {
    {kTopK, DeviceType::kCuda, TopKCandidates},
    {kTopKCandidates, DeviceType::kCuda, TopKCandidates},
    {kTopKMerge, DeviceType::kCuda, TopKMerge},
};

}  // namespace
}  // namespace weft
