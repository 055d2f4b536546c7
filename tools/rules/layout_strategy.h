#ifndef WEFT_TOOLS_RULES_LAYOUT_STRATEGY_H_
#define WEFT_TOOLS_RULES_LAYOUT_STRATEGY_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "tools/rules/op_case.h"

namespace weft {

// Where the operands of a call lie and where its outputs then lie, with nothing moved: a promise, if the op
// offers it.
struct LayoutStrategy {
  std::vector<Layout> operands;
  std::vector<Layout> outputs;

  bool operator==(const LayoutStrategy&) const = default;

  // "[a, -], [-] P{a} -> [a, -]".
  std::string ToString(const DeviceMesh& mesh) const;
};

// Every strategy along one axis that the op offers: for each factor that is not whole, what splitting it
// asks; each linear group as sums and as averages; everything replicated; and for factors of output 0 that no
// operand has, the split that a wanted layout brings about. They are what AxisCandidates, which propagation
// chooses from, would run without moving an operand.
std::vector<LayoutStrategy> OfferedOnAxis(const OpCase& op_case);

// The placements that one axis may give the outputs where the operands lie as `operands` say on a mesh of one
// axis: none if the op does not offer to run there without moving anything.
std::vector<std::vector<Layout>> OfferedOutputs(const OpCase& op_case, const std::vector<Layout>& operands);

// A part of a space that is too large to walk.
template <class T>
struct Sampled {
  std::vector<T> taken = {};
  int64_t total = 0;
};

// Offered strategies combined, one per axis, with every order in which the axes nest on shared dims: at most
// `limit` of them, drawn with `random` without a preference. Combinations that no layout can hold (max beside
// sum) or that would nest an in-place operand's output differently do not count.
Sampled<LayoutStrategy> Compositions(const OpCase& op_case, const DeviceMesh& mesh, int64_t limit,
                                     std::mt19937_64& random);

}  // namespace weft

#endif  // WEFT_TOOLS_RULES_LAYOUT_STRATEGY_H_
