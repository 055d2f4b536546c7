#ifndef WEFT_TESTS_DTENSOR_REDISTRIBUTE_CASES_H_
#define WEFT_TESTS_DTENSOR_REDISTRIBUTE_CASES_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "mesh/layout.h"
#include "mesh/redistribution/planner.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// One redistribution to run, and what every rank made of it.
struct RedistributeCase {
  Layout from;
  Layout to;
  std::vector<Tensor> results = {};  // by rank
  std::vector<int64_t> bytes = {};   // that each rank's ledger gained
  std::vector<int64_t> peak = {};    // bytes that each rank held at most, its source included
};

std::vector<RedistributeCase> AllPairs(const std::vector<Layout>& layouts);

// Runs the cases on one world of thread ranks, and asserts of each that every rank holds, bit for bit, its
// slice of `full`, or terms that reduce to it; that the ledgers hold as many bytes as the plan says; and that
// no rank held more. With kBytes the plans of fewest bytes run in place of RedistributeLocal's.
void CheckRedistributions(absl::string_view mesh, const Tensor& full, std::vector<RedistributeCase> cases,
                          bool column_major = false, PlanObjective objective = PlanObjective::kTime);

// Checks the redistributions of whole numbers of `shape` between any two layouts over Replicate, Shard of
// every dim and Partial, in every nesting; or the `part`-th of `num_parts` of them. Half of the pairs by
// plans of least time, half by plans of fewest bytes: of small tensors the former prefer few messages, the
// latter sent regions and permutes.
void CheckEveryPair(absl::string_view mesh, const Shape& shape, size_t part = 0, size_t num_parts = 1);

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_REDISTRIBUTE_CASES_H_
