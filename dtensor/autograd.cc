#include "dtensor/autograd.h"

#include <algorithm>
#include <optional>
#include <queue>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "dtensor/dispatch.h"
#include "dtensor/implicit_redistribution.h"
#include "dtensor/tape.h"
#include "ops/elementwise.h"
#include "ops/random.h"

namespace weft {
namespace {

// One backward pass. A node runs when every use of its outputs in this pass has delivered; among those that
// are ready the latest recorded runs first, and leaves at once, so that every rank does the same in the same
// order.
class BackwardPass {
 public:
  explicit BackwardPass(MeshContext& context) : context_(context) {}

  void Run(const DTensor& root, const DTensor& seed) {
    CountUses(root.impl()->node);
    Deliver({root.impl()->node, root.impl()->output}, seed);
    while (!ready_.empty()) {
      const IntrusivePtr<TapeNode> node = ready_.top().node;
      ready_.pop();
      RunNode(*node);
    }
  }

 private:
  struct Pending {
    int uses = 0;
    DTensors gradients;  // by output
  };
  struct Ready {
    IntrusivePtr<TapeNode> node;
    bool operator<(const Ready& other) const {
      if (IsLeaf() != other.IsLeaf()) return other.IsLeaf();
      return node->sequence() < other.node->sequence();
    }
    bool IsLeaf() const { return node->edges().empty(); }
  };

  void CountUses(const IntrusivePtr<TapeNode>& root) {
    std::vector<TapeNode*> stack = {root.get()};
    Add(root.get());
    pending_[root.get()].uses = 1;
    while (!stack.empty()) {
      TapeNode* node = stack.back();
      stack.pop_back();
      for (const TapeNode::Edge& edge : node->edges()) {
        if (!edge.node) continue;
        if (Add(edge.node.get())) stack.push_back(edge.node.get());
        ++pending_[edge.node.get()].uses;
      }
    }
  }

  // True the first time.
  bool Add(TapeNode* node) {
    const auto [it, inserted] = pending_.try_emplace(node);
    if (inserted) it->second.gradients.resize(node->num_outputs());
    return inserted;
  }

  // One use has said all it has to say; `gradient` may be undefined.
  void Deliver(const TapeNode::Edge& edge, const DTensor& gradient) {
    Pending& pending = pending_[edge.node.get()];
    if (gradient.defined()) {
      // To add a leaf's gradients may move them: a part of bringing them to rest.
      const bool at_leaf = edge.node->TakesAnyLayout();
      const PurposeGuard purpose(context_.state(), at_leaf ? Purpose::kGrad : context_.state().purpose());
      std::optional<PlannedMovesGuard> planned;
      if (at_leaf) planned.emplace(context_.state());
      DTensor& sum = pending.gradients[edge.output];
      sum = sum.defined() ? Call(kAdd, {sum, gradient}) : gradient;
    }
    if (--pending.uses == 0) ready_.push({edge.node});
  }

  void RunNode(TapeNode& node) {
    PathGuard path(context_.state(), node.path_id());
    const DTensors gradients = std::move(pending_[&node].gradients);
    const bool reached = std::any_of(gradients.begin(), gradients.end(),
                                     [](const DTensor& gradient) { return gradient.defined(); });
    DTensors results(node.edges().size());
    if (reached) results = node.Backward(context_, gradients);
    for (size_t i = 0; i < node.edges().size(); ++i) {
      if (node.edges()[i].node) Deliver(node.edges()[i], results[i]);
      results[i] = DTensor();  // the gradient's memory is free as soon as its last reader is done
    }
  }

  MeshContext& context_;
  absl::flat_hash_map<TapeNode*, Pending> pending_;
  std::priority_queue<Ready> ready_;
};

}  // namespace

void Backward(const DTensor& loss, const DTensor& seed) {
  WEFT_REQUIRE(loss.requires_grad(), "Backward: ", loss.ToString(),
               " depends on no tensor that wants a gradient");
  MeshContext& context = *loss.context();
  DTensor start = seed;
  if (!start.defined()) {
    WEFT_REQUIRE(loss.shape().num_elements() == 1, "Backward: expected a loss of one element, got ",
                 loss.ToString(), "; pass a seed of its shape to differentiate something else");
    start = Create(kFill, loss.context(), Layout(loss.ndim(), context.mesh().num_axes()),
                   {.dtype = loss.dtype(), .shape = loss.shape()}, {.value = 1});
  }
  WEFT_REQUIRE(start.type() == loss.type(), "Backward: the seed is ", start.type().ToString(), ", expected ",
               loss.type().ToString());
  NoGradGuard no_grad(context.state());
  BackwardPass(context).Run(loss, start);
}

}  // namespace weft
