#ifndef WEFT_TOOLS_RULES_RULE_CHECK_H_
#define WEFT_TOOLS_RULES_RULE_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/op/op.h"
#include "tools/rules/missing_search.h"

namespace weft {

// Something that an op promises and that does not hold.
struct WrongStrategy {
  std::string op;
  std::string check;     // "declaration", "one axis", "composition", "propagated", "call", "gradient"
  std::string call;      // types and rule
  std::string strategy;  // mesh and layouts
  std::string difference;

  std::string ToString() const;
};

struct RuleReport {
  int64_t ops = 0;
  int64_t cases = 0;  // results compared with the single-rank one
  int64_t refused = 0;
  std::vector<WrongStrategy> wrong;
  std::vector<MissingStrategy> missing;
  // How much of the larger spaces was walked.
  int64_t missing_tuples = 0;
  int64_t missing_tried = 0;
  int64_t compositions = 0;
  int64_t compositions_tried = 0;

  void Add(const RuleReport& other);
};

struct RuleCheckOptions {
  bool exhaustive = false;               // all compositions, tuples, special values and pairs of odd extents
  uint64_t seed = 1;                     // of what is drawn otherwise
  DeviceType device = DeviceType::kCpu;  // whose kernels
};

// Holds everything that an op says about sharding to its kernel. No rule is trusted:
//
//   declaration  the op has samples; rule and linear groups parse against their types
//   one axis     every strategy that it offers on an axis of 2, 3 and 4 ranks, the kernel alone
//   (kernel_run.h) composition  the same on meshes of 2x2, 2x3 and 2x2x2, an offered strategy an axis
//   propagated   what Propagate chooses for operands that lie at random, the kernel alone
//   call         the public call on such operands: propagation, redistribution, decomposition, kernel
//   gradient     backward of the public call, against one rank's, in f64
//
// over every sample and the extents that follow from it (op_case.h). *Wrong* is what is offered and differs;
// *missing* what is not offered and equal on all that was tried (missing_search.h); *refused* a call that
// throws by design, since an in-place operand would have to move.
//
// Whatever an op needs for this stands in its declaration: a new op is covered without another line.
RuleReport CheckOp(const OpDef& op, const RuleCheckOptions& options = {});

}  // namespace weft

#endif  // WEFT_TOOLS_RULES_RULE_CHECK_H_
