#include "dtensor/autograd/backward.h"

#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "dtensor/dispatch.h"
#include "dtensor/redistribution/implicit.h"
#include "dtensor/tape/gradient_layout.h"
#include "dtensor/tape/leaf_node.h"
#include "dtensor/tape/tape_node.h"
#include "ops/creation/random.h"
#include "ops/elementwise/cast.h"

namespace weft {
namespace {

DTensor One(const DTensor& like) {
  return Create(kFill, like.context(), Layout(like.ndim(), like.context()->mesh().num_axes()),
                {.dtype = like.dtype(), .shape = like.shape()}, {.value = 1});
}

// `who` is the function that the user called.
DTensors Seeds(const char* who, absl::Span<const DTensor> outputs, absl::Span<const DTensor> seeds) {
  WEFT_REQUIRE(!outputs.empty(), who, ": expected something to differentiate, got no tensors");
  WEFT_REQUIRE(seeds.empty() || seeds.size() == outputs.size(), who, ": expected ", outputs.size(),
               " seeds, one for each of the tensors, or none; got ", seeds.size());
  DTensors starts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const DTensor& output = outputs[i];
    WEFT_REQUIRE(output.requires_grad(), who, ": ", output.ToString(),
                 " depends on no tensor that wants a gradient");
    WEFT_REQUIRE(
        output.context() == outputs[0].context() || output.context()->mesh() == outputs[0].context()->mesh(),
        who, ": ", output.ToString(), " is on mesh ", output.context()->mesh().ToString(), ", ",
        outputs[0].ToString(), " on ", outputs[0].context()->mesh().ToString());
    const bool given = !seeds.empty() && seeds[i].defined();
    WEFT_REQUIRE(given || output.shape().num_elements() == 1, who, ": expected a loss of one element, got ",
                 output.ToString(), "; pass a seed of its shape to differentiate something else");
    starts.push_back(given ? seeds[i] : One(output));
    WEFT_REQUIRE(starts.back().type() == output.type(), who, ": the seed is ",
                 starts.back().type().ToString(), ", expected ", output.type().ToString());
    const DeviceMesh &mesh = output.context()->mesh(), &given_mesh = starts.back().context()->mesh();
    WEFT_REQUIRE(!given || given_mesh == mesh, who, ": the seed lies on mesh (", given_mesh.ToString(),
                 "), expected mesh (", mesh.ToString(), ")");
  }
  return starts;
}

absl::InlinedVector<TapeNode::Edge, 1> Edges(absl::Span<const DTensor> tensors) {
  absl::InlinedVector<TapeNode::Edge, 1> edges;
  for (const DTensor& tensor : tensors) edges.push_back(EdgeTo(tensor));
  return edges;
}

// `gradient` of `input`, as it is to lie.
DTensor Laid(const DTensor& input, const DTensor& gradient) {
  const LeafNode* leaf = dynamic_cast<const LeafNode*>(input.impl()->node.get());
  if (leaf == nullptr) return gradient.Redistribute(GradientLayout(input.layout(), gradient.layout()));
  RankState& state = input.context()->state();
  const PurposeGuard purpose(state, Purpose::kGrad);
  const NoImplicitChecksGuard planned(state);
  return gradient.Redistribute(leaf->layout());
}

// The gradient of `input` as Grad returns it. That of a parameter's copy has been added up in the parameter's dtype.
DTensor Settled(const DTensor& input, const DTensor& gradient) {
  const DTensor moved = Laid(input, gradient);
  return moved.dtype() == input.dtype() ? moved : Call(kCast, {moved}, {.dtype = input.dtype()});
}

}  // namespace

void Backward(const DTensor& loss, const DTensor& seed, const BackwardOptions& options) {
  Backward(absl::MakeConstSpan(&loss, 1), absl::MakeConstSpan(&seed, 1), options);
}

void Backward(absl::Span<const DTensor> losses, absl::Span<const DTensor> seeds,
              const BackwardOptions& options) {
  DTensors starts = Seeds("Backward", losses, seeds);
  BackwardPass pass(*losses[0].context(), {.retain_graph = options.retain_graph});
  pass.Run(Edges(losses), std::move(starts));
}

void DeferredGradients::Run() {
  if (runs_.empty()) return;
  BackwardPass pass(*context_, {});
  pass.Run(std::exchange(runs_, {}));
}

std::vector<DTensor> Grad(absl::Span<const DTensor> outputs, absl::Span<const DTensor> inputs,
                          const GradOptions& options) {
  DTensors starts = Seeds("Grad", outputs, options.seeds);
  WEFT_REQUIRE(!inputs.empty(), "Grad: expected inputs to differentiate with respect to, got none");
  WEFT_REQUIRE(
      options.deferred == nullptr || !(options.create_graph || options.retain_graph),
      "Grad: `deferred` keeps what it needs; with it, create_graph and retain_graph have no meaning");
  WEFT_REQUIRE(
      options.deferred == nullptr || options.deferred->empty(),
      "Grad: expected a `deferred` that is empty, got one with gradients that another call has put off; "
      "Run() it first");
  for (const DTensor& input : inputs) {
    WEFT_REQUIRE(input.requires_grad(), "Grad: the input ", input.ToString(),
                 " is on no history; make it a leaf with RequiresGrad() before it is used");
  }
  MeshContext& context = *outputs[0].context();
  const absl::InlinedVector<TapeNode::Edge, 1> targets = Edges(inputs);
  std::vector<DeferredRun> deferred;
  BackwardPass pass(context, {.retain_graph = options.retain_graph || options.create_graph,
                              .create_graph = options.create_graph,
                              .targets = targets,
                              .deferred = options.deferred != nullptr ? &deferred : nullptr});
  pass.Run(Edges(outputs), std::move(starts));
  if (options.deferred != nullptr) {
    options.deferred->context_ = outputs[0].context();
    options.deferred->runs_ = std::move(deferred);
  }
  std::optional<NoGradGuard> no_grad;
  if (!options.create_graph) no_grad.emplace(context.state());
  std::vector<DTensor> results;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const DTensor gradient = pass.TakeTarget(static_cast<int>(i));
    if (options.deferred != nullptr && !inputs[i].impl()->node->edges().empty()) {
      results.emplace_back();
      continue;
    }
    WEFT_REQUIRE(gradient.defined() || options.allow_unused, "Grad: no output depends on input ", i, ", ",
                 inputs[i].ToString(), "; with {.allow_unused = true} its gradient is undefined");
    results.push_back(gradient.defined() ? Settled(inputs[i], gradient) : DTensor());
  }
  return results;
}

}  // namespace weft
