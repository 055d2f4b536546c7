#ifndef WEFT_TOOLS_REDISTRIBUTION_REPORT_H_
#define WEFT_TOOLS_REDISTRIBUTION_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "mesh/redistribution/planner.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// One redistribution to plan.
struct RedistributionQuery {
  DeviceMesh mesh;
  Layout from;
  Layout to;
  TensorType type;
};

// A step, with its own share of the plan's figures.
struct StepReport {
  std::string kind;               // "all_gather"
  std::vector<std::string> axes;  // names
  std::string result;             // layout
  int64_t worst_rank_bytes = 0;
  int64_t total_bytes = 0;
  double predicted_us = 0;

  bool operator==(const StepReport&) const = default;
};

// What a plan costs. Bytes are received ones, an all-reduce counted as reduce-scatter and all-gather.
struct RedistributionReport {
  std::vector<StepReport> steps;
  int64_t worst_rank_bytes = 0;
  int64_t total_bytes = 0;  // over all ranks: what the communication ledgers add up to
  double fraction = 0;      // worst_rank_bytes over the bytes of the global tensor; 0 of an empty one
  int64_t peak_bytes = 0;   // the most that a rank holds, see PeakBytes
  double predicted_us = 0;
  int64_t greedy_bytes = 0;  // worst rank of PlanGreedy
  int64_t bound_bytes = 0;   // what the worst rank must receive in any plan

  bool operator==(const RedistributionReport&) const = default;

  // One object, on one line, with these fields; steps as a list of objects with theirs.
  std::string ToJson() const;
  // Two tables to read.
  std::string ToText() const;
};

RedistributionReport ReportRedistribution(const RedistributionQuery& query, const CostModel& cost_model,
                                          const PlanOptions& options);

// Reads a query. `shape`: "4096,4096", "" for a scalar; layouts in Layout::Parse's form, where "P{a:max}"
// alone means that no dim is split; blanks free.
// Errors: InvalidArgument with the text; for a shape of more than 2^58 bytes, whole on every rank.
RedistributionQuery ParseRedistributionQuery(absl::string_view mesh, absl::string_view shape,
                                             absl::string_view dtype, absl::string_view from,
                                             absl::string_view to);

}  // namespace weft

#endif  // WEFT_TOOLS_REDISTRIBUTION_REPORT_H_
