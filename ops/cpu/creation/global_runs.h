#ifndef WEFT_OPS_CPU_CREATION_GLOBAL_RUNS_H_
#define WEFT_OPS_CPU_CREATION_GLOBAL_RUNS_H_

#include <algorithm>
#include <cstdint>

#include "mesh/shard_math.h"

namespace weft {

// Visits the elements [begin, end) of a piece, in its row-major order, by runs that are neighbours in the
// row-major order of the whole tensor too: body(local_first, global_first, n).
template <class Body>
void ForEachGlobalRun(const ShardBox& box, int64_t begin, int64_t end, const Body& body) {
  // Trailing dims that the piece holds whole make longer runs.
  int inner = box.shape.ndim();
  int64_t run = 1;
  bool whole = true;
  while (inner > 0 && whole) {
    --inner;
    run *= box.shape[inner];
    whole = box.shape[inner] == box.global_shape[inner];
  }
  for (int64_t first = begin, n = 0; first < end; first += n) {
    int64_t rest = first;
    int64_t global = 0;
    int64_t stride = 1;
    for (int dim = box.shape.ndim() - 1; dim >= 0; --dim) {
      global += (box.offset[dim] + rest % box.shape[dim]) * stride;
      stride *= box.global_shape[dim];
      rest /= box.shape[dim];
    }
    n = std::min(end - first, run - first % run);
    body(first, global, n);
  }
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_CREATION_GLOBAL_RUNS_H_
