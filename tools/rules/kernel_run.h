#ifndef WEFT_TOOLS_RULES_KERNEL_RUN_H_
#define WEFT_TOOLS_RULES_KERNEL_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "mesh/device_mesh.h"
#include "tools/rules/laid_value.h"
#include "tools/rules/layout_strategy.h"
#include "tools/rules/op_case.h"

namespace weft {

// A case's operands, laid as a strategy says. Borrows.
struct KernelRun {
  const LayoutStrategy* strategy = nullptr;
  const CaseValues* values = nullptr;
  TermForm form = TermForm::kScattered;
  uint64_t seed = 0;  // of the terms of Partials
};

// What the ranks made of it, on the CPU, or what the first of them threw.
struct KernelResult {
  std::vector<std::vector<Tensor>> outputs;  // by output, by rank
  std::string error;
};

// Runs the kernel alone, dispatch bypassed, on thread ranks: each takes its pieces and makes its pieces of
// the outputs, and nothing is communicated.
std::vector<KernelResult> RunAlone(const OpCase& op_case, const DeviceMesh& mesh,
                                   absl::Span<const KernelRun> runs);

// What is the matter with output `output` of a run, if it lies as `layout` says: empty if it is the
// single-rank result. An op without operands must give the same bits; signed zeros count where no Partial
// takes part (its terms lose them).
//
// Infinities and nan must come out as on one rank, with one exception: where an operand is Partial along an
// axis, or the output is, and the operand that the infinity was planted in is whole there, nan may stand for
// an infinity. Terms of both signs times an infinite factor are inf - inf, for every product there is; what
// is finite on one rank must be finite, and what is not must not be.
std::string OutputDifference(const OpCase& op_case, const DeviceMesh& mesh, const KernelRun& run,
                             const KernelResult& result, size_t output, const Layout& layout);
// The same for all outputs, under the strategy's own layouts: "output 1: ...".
std::string RunDifference(const OpCase& op_case, const DeviceMesh& mesh, const KernelRun& run,
                          const KernelResult& result);

}  // namespace weft

#endif  // WEFT_TOOLS_RULES_KERNEL_RUN_H_
