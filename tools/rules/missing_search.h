#ifndef WEFT_TOOLS_RULES_MISSING_SEARCH_H_
#define WEFT_TOOLS_RULES_MISSING_SEARCH_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tools/rules/op_case.h"

namespace weft {

// A strategy along one axis that an op does not offer, and that gave the single-rank result on all that it
// was tried on.
struct MissingStrategy {
  std::string op;
  std::string rule;
  std::string strategy;  // "[-, -] P{a:max} -> [-, -] P{a:max}"
  int samples = 0;       // of the op that it holds for, among those of this rule and different attributes
  int samples_tried = 0;
  std::string reason;  // why it is left out on purpose; empty if nobody has said
};

// How much of the space was walked.
struct MissingCounts {
  int64_t tuples = 0;  // placements of operands and outputs that the kernel can run on
  int64_t tried = 0;
  int64_t runs = 0;  // of the kernel, on all ranks
};

// Looks for what the rule of `cases` (all of one op) leaves out: placements Replicate, Shard of each dim and
// Partial of each of the five kinds, for every operand, and whatever the outputs then turn out to be.
//
// A tuple is tried only where the kernel is safe to run, whatever it computes:
//   - all that carry a factor are split by it, or none, since a kernel trusts its pieces to fit;
//   - a dim that is whole, or that the rule writes as "1", is split only if inference takes the pieces for
//     whole tensors and gives the pieces of the outputs, and no operand holds integers, which might index it.
//     Views check their ranges, so theirs are split freely;
//   - integers and bools are not made Partial: terms of an index are no indices.
// Tuples with a decomposition for what they split are offered. An output that every rank computes alike is
// listed as replicated only.
//
// A tuple is tried on 2, 3 and 4 ranks, uneven and even extents, ordinary and special values, until it fails;
// at most `limit` are drawn for each sample. Samples of one rule and the same attributes count once.
std::vector<MissingStrategy> FindMissing(const std::vector<OpCase>& cases, int64_t limit,
                                         std::mt19937_64& random, MissingCounts& counts);

}  // namespace weft

#endif  // WEFT_TOOLS_RULES_MISSING_SEARCH_H_
