#ifndef WEFT_BENCHMARKS_PLAIN_COLLECTIVES_H_
#define WEFT_BENCHMARKS_PLAIN_COLLECTIVES_H_

#include <cstdint>

#include "absl/types/span.h"
#include "benchmarks/rank_timer.h"

namespace weft {

// What the `local` backend is held against: an all-reduce as one would write it with threads, and what this
// machine takes to hand a core from one thread to another.

// Every thread of a team leaves the sum of all `inputs` in each of `outputs`. A barrier; each sums its slice
// block by block into `scratch` and copies the block to everyone; a barrier.
//
// Shape: one pointer a rank, `count` floats each, the same on all ranks; outputs[r] may be inputs[r].
void PlainAllReduce(ThreadBarrier& barrier, int rank, absl::Span<float* const> inputs,
                    absl::Span<float* const> outputs, float* scratch, int64_t count);

// Nanoseconds from one thread's yield until another thread of the same core runs: the median.
double HandOverNanoseconds();

}  // namespace weft

#endif  // WEFT_BENCHMARKS_PLAIN_COLLECTIVES_H_
