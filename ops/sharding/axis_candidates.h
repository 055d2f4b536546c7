#ifndef WEFT_OPS_SHARDING_AXIS_CANDIDATES_H_
#define WEFT_OPS_SHARDING_AXIS_CANDIDATES_H_

#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "mesh/layout.h"
#include "ops/sharding/sharding_rule.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// What one call of an op says about its sharding.
struct CallRule {
  ShardingRule rule;
  std::vector<std::vector<int>> linear;  // groups of operand numbers
  std::vector<int> in_place;             // per output, the operand that it overwrites; empty for other ops
  std::vector<int> not_floating;         // operands whose averages are cut to whole numbers
};

using Placements = absl::InlinedVector<Placement, 4>;

// One way for a call to use one mesh axis: what each operand must be along it and what each output then is.
struct AxisCandidate {
  int factor = -1;  // the factor that is split; -1 for a linear group or neither
  Placements operands = {};
  Placements outputs = {};
  int group = -1;  // the linear group of `CallRule::linear` that passes a Partial through; -1 for none

  bool operator==(const AxisCandidate&) const = default;
};

// A way to use an axis that was refused, and why.
struct RefusedCandidate {
  int axis = 0;
  int factor = -1;  // as in AxisCandidate
  int group = -1;
  std::string why;

  bool operator==(const RefusedCandidate&) const = default;
};

// The legal ways for `axis`, best listed first among equals: the factors that some operand (or `like`, for
// output 0) is already split by there, in rule order; the linear groups that carry a Partial there; neither.
// Ways that would move an in-place operand are left out, so there may be none. All that are left out are told
// to `refused`, if it is not null.
std::vector<AxisCandidate> AxisCandidates(const CallRule& call, absl::Span<const Layout> operands,
                                          const Layout* like, int axis,
                                          std::vector<RefusedCandidate>* refused = nullptr);

// The numbers of the operands that are integers or bools, as CallRule has them.
std::vector<int> NotFloating(absl::Span<const TensorType> operands);

// The dim of a value that carries `factor`, or -1.
int DimOfFactor(const std::vector<int>& dims, int factor);

}  // namespace weft

#endif  // WEFT_OPS_SHARDING_AXIS_CANDIDATES_H_
