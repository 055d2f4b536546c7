#include "dtensor/autograd/backward.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "dtensor/call/accumulate.h"
#include "dtensor/call/execute.h"
#include "dtensor/dispatch.h"
#include "dtensor/redistribution/implicit.h"
#include "dtensor/tape/gradient_sink.h"
#include "dtensor/tape/tape_node.h"
#include "ops/creation/random.h"
#include "ops/elementwise/cast.h"

namespace weft {

// One backward pass. A node runs when every use of its outputs in this pass has delivered; among those that
// are ready the latest recorded runs first, and leaves at once, so that every rank does the same in the same
// order.
//
// What arrives at a node is kept in the pass, and the node says where: so nothing is looked up. A pass within
// another (a node that differentiates something on its own) may reach nodes of the outer one; each entry
// remembers the outer pass's, which the node gets back when the pass ends.
class BackwardPass {
 public:
  BackwardPass(MeshContext& context, const DTensor& root)
      : context_(context), root_{root.impl()->node, root.impl()->output} {
    CountUses();
  }
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;
  ~BackwardPass() {
    for (const Entry& entry : entries_) entry.node->pass_entry_ = entry.outer;
  }

  void Run(DTensor seed) {
    Deliver(root_, std::move(seed));
    while (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end(), RunsLater);
      Entry& entry = entries_[ready_.back()->pass_entry_];
      ready_.pop_back();
      RunNode(*entry.node, std::move(entry.gradients));
    }
  }

  // Tells the sinks of the leaves that it reached, in the order in which it found them.
  void EndPass() {
    for (GradientSink* sink : Sinks()) sink->EndPass();
  }
  void AbandonPass() noexcept {
    for (GradientSink* sink : Sinks()) sink->AbandonPass();
  }

 private:
  struct Entry {
    TapeNode* node = nullptr;  // root_ keeps it, by way of edges
    int outer = -1;            // the node's entry in the pass around this one
    int uses = 0;              // not yet delivered
    DTensors gradients;        // by output
  };

  absl::InlinedVector<GradientSink*, 4> Sinks() const {
    absl::InlinedVector<GradientSink*, 4> sinks;
    for (const Entry& entry : entries_) {
      GradientSink* const sink = entry.node->sink();
      const bool is_new = std::find(sinks.begin(), sinks.end(), sink) == sinks.end();
      if (sink != nullptr && is_new) sinks.push_back(sink);
    }
    return sinks;
  }

  static bool RunsLater(const TapeNode* a, const TapeNode* b) {
    const bool a_is_leaf = a->edges().empty();
    const bool b_is_leaf = b->edges().empty();
    return a_is_leaf != b_is_leaf ? b_is_leaf : a->sequence() < b->sequence();
  }

  void CountUses() {
    Use(root_.node.get());
    for (size_t i = 0; i < entries_.size(); ++i) {
      for (const TapeNode::Edge& edge : entries_[i].node->edges()) {
        if (edge.node) Use(edge.node.get());
      }
    }
  }

  void Use(TapeNode* node) {
    const int entry = node->pass_entry_;
    const bool known = entry >= 0 && entry < std::ssize(entries_) && entries_[entry].node == node;
    if (!known) {
      entries_.push_back(
          {.node = node, .outer = entry, .uses = 0, .gradients = DTensors(node->num_outputs())});
      node->pass_entry_ = static_cast<int>(entries_.size()) - 1;
    }
    ++entries_[node->pass_entry_].uses;
  }

  // One use has said all it has to say; `gradient` may be undefined.
  void Deliver(const TapeNode::Edge& edge, DTensor gradient) {
    Entry& entry = entries_[edge.node->pass_entry_];
    if (gradient.defined()) {
      const DType arriving = gradient.impl()->type.dtype;
      const DType dtype = edge.node->SumDType(arriving);
      if (dtype != arriving) gradient = Execute(kCast, {gradient}, {.dtype = dtype});
      DTensor& sum = entry.gradients[edge.output];
      if (sum.defined() && edge.node->TakesAnyLayout()) {
        // To add a leaf's gradients may move them: a part of bringing them to rest.
        const PurposeGuard purpose(context_.state(), Purpose::kGrad);
        const NoImplicitChecksGuard planned(context_.state());
        Accumulate(sum, std::move(gradient));
      } else {
        Accumulate(sum, std::move(gradient));
      }
    }
    if (--entry.uses > 0) return;
    ready_.push_back(entry.node);
    std::push_heap(ready_.begin(), ready_.end(), RunsLater);
  }

  void RunNode(TapeNode& node, DTensors gradients) {
    const PathGuard path(context_.state(), node.path_id());
    const bool reached = std::any_of(gradients.begin(), gradients.end(),
                                     [](const DTensor& gradient) { return gradient.defined(); });
    DTensors results;
    if (reached) results = node.Backward(context_, gradients);
    results.resize(node.edges().size());
    gradients.clear();  // their memory is free, or may be added to in place, as soon as their reader is done
    for (size_t i = 0; i < node.edges().size(); ++i) {
      if (node.edges()[i].node) Deliver(node.edges()[i], std::move(results[i]));
    }
  }

  MeshContext& context_;
  TapeNode::Edge root_;
  absl::InlinedVector<Entry, 8> entries_;
  absl::InlinedVector<TapeNode*, 8> ready_;  // a heap
};

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
  const BackwardScope scope(context.state());
  BackwardPass pass(context, loss);
  try {
    pass.Run(std::move(start));
  } catch (...) {
    if (scope.is_outermost()) pass.AbandonPass();
    throw;
  }
  if (scope.is_outermost()) pass.EndPass();
}

}  // namespace weft
