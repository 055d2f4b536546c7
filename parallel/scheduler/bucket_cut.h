#ifndef WEFT_PARALLEL_SCHEDULER_BUCKET_CUT_H_
#define WEFT_PARALLEL_SCHEDULER_BUCKET_CUT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace weft {

// A leaf whose gradient goes into a bucket by its size.
struct SizedLeaf {
  int64_t bytes = 0;
  int kind = 0;  // leaves of different kinds share no bucket
};

// Cuts leaves, in the order in which their gradients are complete, into buckets: of each leaf the number of its bucket,
// from 0 on and without gaps. A bucket holds at most `bucket_bytes`, the first at most `edge_bytes`, so that it is early
// on its way; a leaf that is larger has a bucket of its own.
//
// What is still to move when backward has ended, nothing can hide. So the buckets grow smaller towards the end: one that
// begins where `left` bytes are to come holds at most half of them, but not less than `edge_bytes`, and the leaves that
// are the last `edge_bytes` are apart from those before them. That makes log2(bucket_bytes / edge_bytes) buckets more.
std::vector<int> CutBuckets(absl::Span<const SizedLeaf> leaves, int64_t bucket_bytes, int64_t edge_bytes);

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_BUCKET_CUT_H_
