#include "dtensor/functions/sort.h"

#include "dtensor/dispatch.h"
#include "ops/indexing/sort.h"
#include "ops/indexing/top_k.h"

namespace weft {

SortedElements Sort(const DTensor& x, int dim, bool descending) {
  const DTensors outputs =
      CallAll(kSort, {x}, {.dim = NormalizeDim(dim, x.ndim(), "Sort"), .descending = descending});
  return {.values = outputs[0], .indices = outputs[1]};
}

SortedElements TopK(const DTensor& x, int64_t k, const TopKOptions& options) {
  const DTensors outputs = CallAll(
      kTopK, {x}, {.dim = NormalizeDim(options.dim, x.ndim(), "TopK"), .k = k, .largest = options.largest});
  return {.values = outputs[0], .indices = outputs[1]};
}

}  // namespace weft
