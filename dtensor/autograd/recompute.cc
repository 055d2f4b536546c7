#include "dtensor/autograd/recompute.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward_pass.h"
#include "dtensor/tape/saved_value.h"
#include "dtensor/tape/tape_node.h"

namespace weft {
namespace {

// Where the history within the function ends: at one of its inputs. Gradients arrive as they would at what the input
// came from.
class InputNode final : public TapeNode {
 public:
  InputNode(RankState& state, Edge outside)
      : TapeNode(state, {}, /*num_outputs=*/1), outside_(std::move(outside)) {}

  bool TakesAnyLayout() const override { return outside_.node->TakesAnyLayout(); }
  bool TakesTermsIn(DType dtype) const override { return outside_.node->TakesTermsIn(dtype); }
  DType SumDType(DType arriving) const override { return outside_.node->SumDType(arriving); }
  std::string Name() const override { return "input of a recomputed function"; }
  DTensors Backward(MeshContext& /*context*/, absl::Span<const DTensor> /*gradients*/,
                    const NodeRun& /*run*/) override {
    return {};
  }

 private:
  const Edge outside_;
};

// The inputs as the function gets them: with a history that ends there.
DTensors CutInputs(RankState& state, absl::Span<const DTensor> inputs,
                   absl::Span<const TapeNode::Edge> edges) {
  DTensors cut;
  for (size_t i = 0; i < inputs.size(); ++i) {
    cut.push_back(inputs[i].defined() ? WithoutHistory(inputs[i]) : DTensor());
    if (edges[i].node) cut[i].impl()->node = IntrusivePtr<TapeNode>(new InputNode(state, edges[i]));
  }
  return cut;
}

// Where the outputs' history ends other than at the function's own inputs, in the order of recording, each once: leaves,
// and captured values that were recorded before `since`, when the function began to run.
TapeNode::Edges FindEnds(absl::Span<const DTensor> outputs, uint64_t since) {
  absl::flat_hash_set<std::pair<const TapeNode*, int>> seen;
  std::vector<const TapeNode*> open;
  TapeNode::Edges ends;
  const auto visit = [&](const TapeNode::Edge& edge) {
    if (!edge.node) return;
    const TapeNode& node = *edge.node;
    const bool is_within = node.sequence() >= since;
    const int output = is_within ? 0 : edge.output;  // a node within is gone through once
    if (!seen.insert({&node, output}).second) return;
    if (is_within && !node.edges().empty()) {
      open.push_back(&node);
    } else if (!is_within || dynamic_cast<const InputNode*>(&node) == nullptr) {
      ends.push_back(edge);
    }
  };
  for (const DTensor& output : outputs) {
    if (output.defined()) visit(EdgeTo(output));
  }
  while (!open.empty()) {
    const TapeNode* const node = open.back();
    open.pop_back();
    for (const TapeNode::Edge& edge : node->edges()) visit(edge);
  }
  std::sort(ends.begin(), ends.end(), [](const TapeNode::Edge& a, const TapeNode::Edge& b) {
    return std::pair(a.node->sequence(), a.output) < std::pair(b.node->sequence(), b.output);
  });
  return ends;
}

// Modules say themselves whether they train (Module::Train); the scope of random draws has that of the one that runs.
bool TrainsOutsideModules(RankState& state) {
  const ModuleTrainingGuard any_module(state, true);
  return state.training();
}

// What is expected of an output whenever the function runs.
struct OutputKind {
  TensorType type;
  Layout layout;

  bool operator==(const OutputKind&) const = default;
};

// Nothing for one that is undefined.
std::optional<OutputKind> KindOf(const DTensor& output) {
  if (!output.defined()) return std::nullopt;
  return OutputKind{.type = output.type(), .layout = output.layout()};
}

// A call of a function that is run again. Its operands are the inputs, then the other ends of the function's history
// (FindEnds): what lies behind those is the outer pass's.
class RecomputeNode final : public TapeNode {
 public:
  RecomputeNode(RankState& state, Edges edges, uint64_t since, absl::Span<const DTensor> inputs,
                std::function<DTensors(const DTensors&)> function, KeptResults kept, RandomSnapshot random,
                absl::Span<const DTensor> outputs)
      : TapeNode(state, std::move(edges), static_cast<int>(outputs.size())),
        since_(since),
        function_(std::move(function)),
        kept_(std::move(kept)),
        random_(std::move(random)),
        trains_(TrainsOutsideModules(state)),
        syncs_(state.syncs_gradients()),
        autocast_(state.autocast()) {
    for (const DTensor& input : inputs) inputs_.push_back(input.defined() ? SavedValue(input) : SavedValue());
    for (const DTensor& output : outputs) kinds_.push_back(KindOf(output));
  }

  std::string Name() const override { return "Recompute"; }
  DTensors Backward(MeshContext& context, absl::Span<const DTensor> gradients, const NodeRun& run) override;

 private:
  DTensors RunAgain(MeshContext& context);
  void CheckMayRun(MeshContext& context) const;
  void CheckOutput(size_t index, const DTensor& output) const;
  // Of what only another run of the function would read.
  void LetGo() {
    inputs_.clear();
    kept_ = KeptResults(KeptOps());
    function_ = nullptr;
  }

  const uint64_t since_;  // when the function's first run began
  std::function<DTensors(const DTensors&)> function_;
  std::vector<SavedValue> inputs_;
  KeptResults kept_;
  const RandomSnapshot random_;
  const bool trains_;
  const bool syncs_;  // what functions within recompute may go by that (ModuleRecompute::last_microbatch)
  const std::optional<DType> autocast_;
  std::vector<std::optional<OutputKind>> kinds_;  // of the outputs
  // Where the history of the last run of the function ends: for each input, null for one without a history.
  std::vector<IntrusivePtr<TapeNode>> cut_;
  // What a run for some of the operands has left to the one for the others.
  std::optional<std::vector<DeferredRun>> deferred_;
  bool used_up_ = false;
};

void RecomputeNode::CheckMayRun(MeshContext& context) const {
  if (used_up_) {
    Throw(absl::StatusCode::kFailedPrecondition,
          "Backward: the history of a result of Recompute was used up by an earlier Backward", kHowToRetain);
  }
  if (context.state().grad_enabled()) {
    Throw(absl::StatusCode::kFailedPrecondition,
          "Backward: a recomputed function has no gradients of gradients: call it without Recompute, or "
          "differentiate once");
  }
}

void RecomputeNode::CheckOutput(size_t index, const DTensor& output) const {
  const std::optional<OutputKind>& kind = kinds_[index];
  if (KindOf(output) == kind) return;
  std::string was = "undefined";
  if (kind) {
    was = absl::StrCat(
        kind->type.ToString(), " ",
        output.defined() ? kind->layout.ToString(output.context()->mesh()) : kind->layout.ToString());
  }
  Throw(absl::StatusCode::kFailedPrecondition, "Recompute: output ", index, " was ", was,
        " in forward and is ", output.ToString(),
        " in backward; the function has to do the same whenever it runs");
}

DTensors RecomputeNode::RunAgain(MeshContext& context) {
  RankState& state = context.state();
  DTensors inputs;
  for (const SavedValue& input : inputs_) {
    inputs.push_back(input.defined() ? input.Unpack("Recompute") : DTensor());
  }
  inputs = CutInputs(state, inputs, edges());
  cut_.clear();
  for (const DTensor& input : inputs) {
    cut_.push_back(input.defined() ? input.impl()->node : IntrusivePtr<TapeNode>());
  }
  const EnableGradGuard grad(state);
  const RandomScope random(state, random_);
  const AutocastGuard autocast(state, autocast_);
  const TrainingGuard training(state, trains_);
  const SyncGradientsGuard syncs(state, syncs_);
  kept_.Rewind();
  const KeptResultsGuard kept(state, kept_.keeps_any() ? &kept_ : nullptr);
  const MemoryKindGuard kind(*context.allocator(), MemoryKind::kSaved);
  DTensors outputs = function_(inputs);
  if (outputs.size() != kinds_.size()) {
    Throw(absl::StatusCode::kFailedPrecondition, "Recompute: the function made ", kinds_.size(),
          " outputs in forward and ", outputs.size(), " in backward");
  }
  return outputs;
}

DTensors RecomputeNode::Backward(MeshContext& context, absl::Span<const DTensor> gradients,
                                 const NodeRun& run) {
  CheckMayRun(context);
  DTensors outputs;
  if (!deferred_) outputs = RunAgain(context);
  std::vector<TapeNode::Edge> targets;
  std::vector<int> operands;  // of each target
  for (int i = 0; i < std::ssize(edges()); ++i) {
    if (!Wants(i, run)) continue;
    targets.push_back(i < std::ssize(cut_) ? TapeNode::Edge{cut_[i], 0} : edges()[i]);
    operands.push_back(i);
  }
  std::vector<TapeNode::Edge> roots;
  DTensors seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    CheckOutput(i, outputs[i]);
    if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
    roots.push_back(EdgeTo(outputs[i]));
    seeds.push_back(gradients[i]);
  }
  outputs.clear();
  if (!run.retain || run.is_half) LetGo();
  used_up_ = !run.retain;
  std::vector<DeferredRun> rest;
  BackwardPass pass(context,
                    {.targets = targets, .deferred = run.is_half ? &rest : nullptr, .since = since_});
  if (deferred_) {
    pass.Run(*std::exchange(deferred_, std::nullopt));
  } else {
    pass.Run(roots, std::move(seeds));
  }
  if (run.is_half) deferred_ = std::move(rest);
  DTensors results(edges().size());
  for (size_t i = 0; i < operands.size(); ++i) results[operands[i]] = pass.TakeTarget(static_cast<int>(i));
  return results;
}

}  // namespace

DTensors Recompute(std::function<DTensors(const DTensors&)> function, const DTensors& inputs,
                   const KeptOps& keep) {
  const auto first = std::find_if(inputs.begin(), inputs.end(), [](const DTensor& x) { return x.defined(); });
  WEFT_REQUIRE(first != inputs.end(), "Recompute: expected at least one input that is defined, got ",
               inputs.size(), " that are not");
  RankState& state = first->context()->state();
  if (!state.grad_enabled()) return function(inputs);
  TapeNode::Edges edges;
  for (const DTensor& input : inputs) {
    edges.push_back(input.defined() && input.requires_grad() ? EdgeTo(input) : TapeNode::Edge());
  }
  RandomSnapshot random = state.random_snapshot();
  KeptResults kept(keep, state.drops_history());
  const uint64_t since = state.NextSequence();
  DTensors made;
  {
    const KeptResultsGuard guard(state, &kept);
    const DropsHistoryGuard drops(state, true);
    made = function(CutInputs(state, inputs, edges));
  }
  if (KeptResults* const around = state.kept_results(); around != nullptr) around->NoteReads(kept);
  for (TapeNode::Edge& end : FindEnds(made, since)) edges.push_back(std::move(end));
  DTensors outputs;
  for (const DTensor& output : made) {
    outputs.push_back(output.defined() ? WithoutHistory(output) : DTensor());
  }
  const IntrusivePtr<TapeNode> node(new RecomputeNode(state, std::move(edges), since, inputs,
                                                      std::move(function), std::move(kept), std::move(random),
                                                      outputs));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!made[i].requires_grad()) continue;
    outputs[i].impl()->node = node;
    outputs[i].impl()->output = static_cast<int>(i);
  }
  return outputs;
}

}  // namespace weft
