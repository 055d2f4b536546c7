#ifndef WEFT_DTENSOR_AUTOGRAD_BACKWARD_PASS_H_
#define WEFT_DTENSOR_AUTOGRAD_BACKWARD_PASS_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/dtensor.h"
#include "dtensor/tape/tape_node.h"

namespace weft {

// A run of a node that a pass has put off, for the operands whose gradients it did not need: what the node had
// got, and which those operands are. Without a node: a gradient on its way to `edge`.
struct DeferredRun {
  IntrusivePtr<TapeNode> node;
  DTensors gradients;
  absl::InlinedVector<bool, 4> wanted;
  TapeNode::Edge edge;
};

// What a pass follows, and what it keeps.
struct PassOptions {
  bool retain_graph = false;
  bool create_graph = false;
  // The gradients to take, by node and output. If there are any, the pass follows no edge that leads to none
  // of them, and leaves get nothing.
  absl::Span<const TapeNode::Edge> targets = {};
  // Where the pass leaves, in its own order, what it did not follow.
  std::vector<DeferredRun>* deferred = nullptr;
  // Of a pass with targets: it ends, as at leaves, at nodes recorded before (TapeNode::sequence).
  uint64_t since = 0;
};

// One backward pass. A node runs when every use of its outputs in this pass has delivered; among those that
// are ready the latest recorded runs first, and leaves at once, so that every rank does the same in the same
// order. A leaf whose gradients go elsewhere runs as soon as the node of its last use has released its own, before that has made
// the others (EarlyDelivery): in the outermost pass, if that has no targets.
//
// What arrives at a node is kept in the pass, and the node says where: so nothing is looked up. A pass within
// another (a node that differentiates something on its own) may reach nodes of the outer one; each entry
// remembers the outer pass's, which the node gets back when the pass ends. Leaves that an inner pass reaches
// are delivered by the outermost, each once: with its own uses, or at its end.
//
// Threads: the rank's thread.
class BackwardPass {
 public:
  // Adopts its `options`' spans: they must outlive it.
  BackwardPass(MeshContext& context, const PassOptions& options);
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;
  ~BackwardPass();

  // From these roots, a gradient for each.
  void Run(absl::Span<const TapeNode::Edge> roots, DTensors seeds);
  // What another pass has put off.
  void Run(std::vector<DeferredRun> deferred);

  // The gradient of a target, in the layout in which it arrived; undefined if none did.
  DTensor TakeTarget(int target) { return std::move(taken_[target]); }

 private:
  struct Entry {
    TapeNode* node = nullptr;  // the roots keep it, or deferred_, by way of edges
    int outer = -1;            // the node's entry in the pass around this one
    int uses = 0;              // not yet delivered
    bool leads = true;         // to a target, if there are any
    bool has_run = false;
    int last_target = -1;  // of those that are outputs of the node
    DTensors gradients;    // by output
  };
  struct Target {
    int output = 0;
    int index = 0;    // in PassOptions::targets
    int before = -1;  // of the same node
  };

  class NodeDelivery;

  static bool RunsLater(const TapeNode* a, const TapeNode* b);
  // Those that the pass follows.
  absl::Span<const TapeNode::Edge> EdgesOf(const TapeNode& node) const {
    return node.sequence() < options_.since ? absl::Span<const TapeNode::Edge>() : node.edges();
  }
  bool has_targets() const { return !options_.targets.empty(); }
  bool Leads(const TapeNode::Edge& edge) const { return edge.node && entries_[edge.node->pass_entry_].leads; }
  void RunGuarded(absl::Span<const TapeNode::Edge> roots, absl::Span<DTensor> seeds,
                  absl::Span<DeferredRun> deferred);
  int Find(TapeNode* node);
  void CountUses(absl::Span<const TapeNode::Edge> roots, absl::Span<const DeferredRun> deferred);
  void FindWhatLeads();
  void Start(const TapeNode::Edge& root, DTensor seed);
  void RunReady();
  void RunFirst();
  DTensor Sum(const TapeNode& node, DTensor sum, DTensor gradient);
  void Add(Entry& entry, const TapeNode::Edge& edge, DTensor gradient);
  void Deliver(const TapeNode::Edge& edge, DTensor gradient);
  bool DeliverEarly(const TapeNode::Edge& edge, DTensor& gradient);
  void RunNode(Entry& entry);
  void RunLeaf(TapeNode& leaf, absl::Span<DTensor> gradients);
  void DeliverOn(TapeNode& node, DTensors* results, absl::Span<const bool> wanted, uint64_t delivered = 0);
  void Receive(TapeNode& leaf, DTensor gradient);
  void DeliverReceived();
  absl::InlinedVector<GradientSink*, 4> Sinks() const;

  MeshContext& context_;
  const PassOptions options_;
  absl::InlinedVector<Entry, 8> entries_;
  absl::InlinedVector<TapeNode*, 8> ready_;  // a heap
  absl::InlinedVector<Target, 2> targets_;
  DTensors taken_;                     // by target
  std::vector<DeferredRun> deferred_;  // that this pass runs
  // Of the outermost pass: what inner ones have for leaves, until it delivers that.
  std::vector<std::pair<IntrusivePtr<TapeNode>, DTensor>> received_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_AUTOGRAD_BACKWARD_PASS_H_
