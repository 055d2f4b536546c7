#ifndef WEFT_DTENSOR_INSPECT_EXPLAIN_H_
#define WEFT_DTENSOR_INSPECT_EXPLAIN_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/call/call_observer.h"
#include "dtensor/dtensor.h"
#include "ops/op/op.h"

namespace weft {

// How an op's call is spread, and why so: every way that was weighed, what it was taken to cost, and why it
// lost. Filled from the search itself (Propagate's trace), not from a second one, but for the moves: their steps, bytes
// and times are those of the plans that would run, where the search goes by estimates. A value; prints.
//
// Units: predicted microseconds; bytes summed over all ranks, as the ledger counts them.
struct Explanation {
  // What becomes of one operand.
  struct Move {
    Layout to;
    double us = 0;  // of `steps`, as are the bytes
    int64_t num_bytes = 0;
    std::string steps = {};  // "all_gather(dp)"; empty if it stays
  };

  // One combination of choices, an axis each.
  struct Candidate {
    // By axis: "split m", "Partial {x}", "neither"; fewer if it was dropped.
    std::vector<std::string> choices = {};
    std::vector<Move> moves = {};  // by operand; empty if it was dropped before its layouts were known
    std::vector<Layout> outputs = {};
    double transfer_us = 0;  // of all moves; an estimate if it was dropped
    double compute_us = 0;   // one rank's share of the work
    double output_us = 0;    // writing one rank's outputs
    bool chosen = false;
    // Why it lost, by what the search weighed, which counts an operand that stands twice for each; empty for the chosen one.
    std::string why = {};

    double total_us() const { return transfer_us + compute_us + output_us; }
    int64_t num_bytes() const;
  };

  std::string op = {};
  std::string path = {};  // of the module that calls, where ExplainCalls saw it
  DeviceMesh mesh = {};
  std::string rule = {};  // "m k, k n -> m n"
  std::vector<std::string> operand_names = {};
  std::vector<TensorType> types = {};
  std::vector<Layout> layouts = {};
  std::vector<Layout> outputs = {};        // where the outputs come to lie
  std::vector<Candidate> candidates = {};  // in the order in which ties are decided, the dropped ones last
  std::vector<std::string> refused =
      {};  // what was no candidate: "dp: split k: no operand is split by it there"
  std::string decomposed_because = {};  // where the op runs as its decomposition, whose calls are `parts`
  std::vector<Explanation> parts = {};

  // Null if the op runs as its decomposition.
  const Candidate* chosen() const;
  // Of the chosen candidate, or of all parts.
  double total_us() const;
  int64_t num_bytes() const;

  // A table of the candidates, the chosen one marked '*', and what was refused.
  std::string ToString() const;
  // The same as one JSON object.
  std::string ToJson() const;
};

std::ostream& operator<<(std::ostream& out, const Explanation& explanation);

// Explains a call without running it: nothing is computed, moved or cached. `values` tells operands that are one tensor, by
// equal pointers; none are, if it is empty. Such a tensor moves once, if it is to lie alike wherever it stands.
// Errors: as the call itself.
Explanation ExplainErased(const OpDef& op, absl::Span<const TensorType> types,
                          absl::Span<const Layout> layouts, const void* attributes, const void* scalars,
                          const Layout* like, const DeviceMesh& mesh, const CostModel& cost_model,
                          absl::Span<const void* const> values = {});

// Explains Call(op, operands, attributes, scalars): Explain(kContract, {x, w}, {"mk", "kn", "mn"}).
template <class A, class R>
Explanation Explain(const Op<A, R>& op, std::initializer_list<DTensor> operands,
                    const std::type_identity_t<A>& attributes = {},
                    const std::type_identity_t<R>& scalars = {}) {
  WEFT_REQUIRE(operands.size() > 0, op.name(), ": Explain needs an operand");
  std::vector<TensorType> types;
  std::vector<Layout> layouts;
  std::vector<const void*> values;
  for (const DTensor& operand : operands) {
    types.push_back(operand.type());
    layouts.push_back(operand.layout());
    values.push_back(operand.impl().get());
  }
  MeshContext& context = *operands.begin()->context();
  return ExplainErased(op, types, layouts, &attributes, &scalars, /*like=*/nullptr, context.mesh(),
                       context.cost_model(), values);
}

// Explains every call that `body` dispatches while it runs, in order: those of functions, modules and
// Backward. What it computes and moves, it computes and moves.
std::vector<Explanation> ExplainCalls(RankState& state, const std::function<void()>& body);

// Explains calls into `explanations` while it lives; null: explains none.
class ExplainGuard final : CallObserver {
 public:
  ExplainGuard(RankState& state, std::vector<Explanation>* explanations)
      : explanations_(explanations), guard_(state, explanations == nullptr ? nullptr : this) {}

 private:
  void OnCall(const ErasedCall& call, const ResolvedCall& plan) override;
  void OnRearrange(absl::string_view name, absl::Span<const DTensor> sources,
                   const Rearrangement& rearrangement, const LoweredRearrangement& lowered) override;

  std::vector<Explanation>* explanations_;
  CallObserverGuard guard_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_INSPECT_EXPLAIN_H_
