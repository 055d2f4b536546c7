#ifndef WEFT_TOOLS_RULES_PUBLIC_CALL_H_
#define WEFT_TOOLS_RULES_PUBLIC_CALL_H_

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "tools/rules/laid_value.h"
#include "tools/rules/op_case.h"

namespace weft {

// One call of an op through dispatch, on operands that lie anyhow. Borrows.
struct PublicCall {
  const OpCase* op_case = nullptr;
  const CaseValues* values = nullptr;
  std::vector<Layout> operands =
      {};  // where they lie; for an op without operands, where its output shall lie
  TermForm form = TermForm::kScattered;
  // Set: the gradient of this output is checked too, with a seed of this layout. Operands are then leaves.
  std::optional<int> output = {};
  Layout seed_layout = {};

  std::string ToString(const DeviceMesh& mesh) const;
};

enum class CallOutcome { kRight, kWrong, kRefused };

struct CallResult {
  CallOutcome outcome = CallOutcome::kRight;
  std::string difference;  // of a wrong one; the message of a refused one
};

// A layout drawn at random: each axis Replicate, Shard of a dim, or (if `partial`) Partial, in any nesting.
Layout RandomLayout(int ndim, const DeviceMesh& mesh, bool partial, std::mt19937_64& random);

// Runs the calls, all for one device, on thread ranks, one after the other, and holds every rank's full
// outputs to the single-rank result; gradients to those of the same call on one rank. A call that would move
// an in-place operand is refused; any other error is a wrong result.
std::vector<CallResult> RunPublicCalls(const DeviceMesh& mesh, absl::Span<const PublicCall> calls);

// The outputs of a case that have a gradient: floating ones, less those that serve the op's own backward
// alone (a norm's mean), for which it throws Unimplemented. None if the op has no backward or no floating
// operand.
std::vector<int> DifferentiableOutputs(const OpCase& op_case, const CaseValues& values);

}  // namespace weft

#endif  // WEFT_TOOLS_RULES_PUBLIC_CALL_H_
