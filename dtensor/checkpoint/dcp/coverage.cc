#include "dtensor/checkpoint/dcp/coverage.h"

#include <cstdint>
#include <utility>

namespace weft {

Uncovered::Uncovered(const Region& whole) : whole_(whole) {
  if (!whole_.empty()) boxes_.push_back(whole_);
}

// A box without what it shares with the piece falls into at most two slabs per dim: what lies before the piece along that dim
// and what lies behind it, within the piece's extent along the dims before.
bool Uncovered::Cut(const Region& piece) {
  std::vector<Region> left;
  int64_t num_cut = 0;
  for (Region rest : boxes_) {
    const Region shared = Intersect(rest, piece);
    if (shared.empty()) {
      left.push_back(rest);
      continue;
    }
    num_cut += shared.shape.num_elements();
    for (int dim = 0; dim < rest.shape.ndim(); ++dim) {
      const int64_t begin = rest.offset[dim], end = begin + rest.shape[dim];
      const int64_t cut_begin = shared.offset[dim], cut_end = cut_begin + shared.shape[dim];
      if (begin < cut_begin) {
        Region before = rest;
        before.shape[dim] = cut_begin - begin;
        left.push_back(before);
      }
      if (cut_end < end) {
        Region behind = rest;
        behind.offset[dim] = cut_end;
        behind.shape[dim] = end - cut_end;
        left.push_back(behind);
      }
      rest.offset[dim] = cut_begin;
      rest.shape[dim] = shared.shape[dim];
    }
  }
  boxes_ = std::move(left);
  return num_cut == Intersect(whole_, piece).shape.num_elements();
}

}  // namespace weft
