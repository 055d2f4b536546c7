#include "parallel/scheduler/bucket_cut.h"

#include <algorithm>

namespace weft {

std::vector<int> CutBuckets(absl::Span<const SizedLeaf> leaves, int64_t bucket_bytes, int64_t edge_bytes) {
  const int64_t edge = std::min(edge_bytes, bucket_bytes);
  int64_t left = 0;  // from here on
  for (const SizedLeaf& leaf : leaves) left += leaf.bytes;
  std::vector<int> buckets;
  int64_t held = 0, limit = edge;  // of the open bucket
  bool in_tail = false;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const SizedLeaf& leaf = leaves[i];
    const bool begins_tail = !in_tail && left <= edge;
    in_tail |= begins_tail;
    if (i == 0) {
      buckets.push_back(0);
    } else if (begins_tail || held + leaf.bytes > limit || leaf.kind != leaves[i - 1].kind) {
      buckets.push_back(buckets.back() + 1);
      limit = std::min(bucket_bytes, std::max(edge, left / 2));
      held = 0;
    } else {
      buckets.push_back(buckets.back());
    }
    held += leaf.bytes;
    left -= leaf.bytes;
  }
  return buckets;
}

}  // namespace weft
