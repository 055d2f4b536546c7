// Whether boxes have each element of a box once.

#ifndef WEFT_DTENSOR_CHECKPOINT_DCP_COVERAGE_H_
#define WEFT_DTENSOR_CHECKPOINT_DCP_COVERAGE_H_

#include <vector>

#include "mesh/redistribution/region.h"

namespace weft {

// What is left of a region when pieces are cut out of it, one after another.
//
// Cost: per cut the number of boxes that are left: one or two, where a grid's pieces come in the order of their offsets.
class Uncovered {
 public:
  explicit Uncovered(const Region& whole);

  // Cuts `piece` out. Returns whether all of it, within the whole, was still there: if not, it overlaps one before it.
  bool Cut(const Region& piece);
  // Disjoint boxes, none of them empty; none are left when the pieces are all of the whole.
  const std::vector<Region>& boxes() const { return boxes_; }

 private:
  const Region whole_;
  std::vector<Region> boxes_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_DCP_COVERAGE_H_
