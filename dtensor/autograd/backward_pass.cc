#include "dtensor/autograd/backward_pass.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "dtensor/call/accumulate.h"
#include "dtensor/dispatch.h"
#include "dtensor/redistribution/implicit.h"
#include "dtensor/tape/gradient_sink.h"
#include "ops/elementwise/cast.h"
#include "ops/elementwise/elementwise.h"

namespace weft {
namespace {

bool IsLeaf(const TapeNode& node) { return node.edges().empty(); }

bool Any(absl::Span<const bool> flags) {
  return std::any_of(flags.begin(), flags.end(), [](bool flag) { return flag; });
}

}  // namespace

BackwardPass::BackwardPass(MeshContext& context, const PassOptions& options)
    : context_(context), options_(options), taken_(options.targets.size()) {}

BackwardPass::~BackwardPass() {
  for (const Entry& entry : entries_) entry.node->pass_entry_ = entry.outer;
}

bool BackwardPass::RunsLater(const TapeNode* a, const TapeNode* b) {
  return IsLeaf(*a) != IsLeaf(*b) ? IsLeaf(*b) : a->sequence() < b->sequence();
}

void BackwardPass::Run(absl::Span<const TapeNode::Edge> roots, DTensors seeds) {
  RunGuarded(roots, absl::MakeSpan(seeds), {});
}

void BackwardPass::Run(std::vector<DeferredRun> deferred) {
  deferred_ = std::move(deferred);
  RunGuarded({}, {}, absl::MakeSpan(deferred_));
}

void BackwardPass::RunGuarded(absl::Span<const TapeNode::Edge> roots, absl::Span<DTensor> seeds,
                              absl::Span<DeferredRun> deferred) {
  std::optional<NoGradGuard> no_grad;
  std::optional<EnableGradGuard> grad;
  if (options_.create_graph) {
    grad.emplace(context_.state());
  } else {
    no_grad.emplace(context_.state());
  }
  const BackwardScope scope(context_.state(), *this);
  const MemoryKindGuard kind(*context_.allocator(), MemoryKind::kGrad);
  CountUses(roots, deferred);
  absl::InlinedVector<GradientSink*, 4> sinks;
  size_t num_ended = 0;
  try {
    for (size_t i = 0; i < roots.size(); ++i) Start(roots[i], std::move(seeds[i]));
    RunReady();
    for (DeferredRun& run : deferred) {
      if (run.node) {
        const PathGuard path(context_.state(), run.node->path_id());
        DTensors results = run.node->Backward(context_, run.gradients, {.wanted = run.wanted});
        run.gradients.clear();
        DeliverOn(*run.node, &results, run.wanted);
      } else {
        Deliver(run.edge, std::move(run.gradients[0]));
      }
      RunReady();
    }
    DeliverReceived();
    if (!scope.is_outermost()) return;
    for (sinks = Sinks(); num_ended < sinks.size(); ++num_ended) sinks[num_ended]->EndPass();
  } catch (...) {
    if (scope.is_outermost()) {
      if (sinks.empty()) sinks = Sinks();
      for (; num_ended < sinks.size(); ++num_ended) sinks[num_ended]->AbandonPass();
    }
    throw;
  }
}

// The sinks of the leaves that it reached, in the order of their sequence: ranks that go different ways find them in
// different orders.
absl::InlinedVector<GradientSink*, 4> BackwardPass::Sinks() const {
  absl::InlinedVector<GradientSink*, 4> sinks;
  const auto add = [&](GradientSink* sink) {
    if (sink == nullptr) return;
    if (std::find(sinks.begin(), sinks.end(), sink) == sinks.end()) sinks.push_back(sink);
  };
  for (const Entry& entry : entries_) {
    if (!has_targets()) add(entry.node->sink());
  }
  for (const auto& [leaf, gradient] : received_) add(leaf->sink());
  std::sort(sinks.begin(), sinks.end(),
            [](const GradientSink* a, const GradientSink* b) { return a->sequence() < b->sequence(); });
  return sinks;
}

// The node's entry in this pass, made if there was none. This and what delivers is inlined: calls of them would
// be 3% of a short pass.
[[gnu::always_inline]] inline int BackwardPass::Find(TapeNode* node) {
  const int entry = node->pass_entry_;
  const bool known = entry >= 0 && entry < std::ssize(entries_) && entries_[entry].node == node;
  if (known) return entry;
  entries_.push_back({.node = node, .outer = entry, .gradients = DTensors(node->num_outputs())});
  return node->pass_entry_ = static_cast<int>(entries_.size()) - 1;
}

void BackwardPass::CountUses(absl::Span<const TapeNode::Edge> roots, absl::Span<const DeferredRun> deferred) {
  const auto use = [this](TapeNode* node) { ++entries_[Find(node)].uses; };
  for (const TapeNode::Edge& root : roots) use(root.node.get());
  for (const DeferredRun& run : deferred) {
    if (!run.node) use(run.edge.node.get());
    for (size_t i = 0; i < run.wanted.size(); ++i) {
      if (run.wanted[i]) use(run.node->edges()[i].node.get());
    }
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    for (const TapeNode::Edge& edge : EdgesOf(*entries_[i].node)) {
      if (edge.node) use(edge.node.get());
    }
  }
  if (has_targets()) FindWhatLeads();
}

// Marks what leads to targets, and takes back the uses of what does not.
void BackwardPass::FindWhatLeads() {
  for (size_t i = 0; i < options_.targets.size(); ++i) {
    TapeNode* const node = options_.targets[i].node.get();
    const int entry = node->pass_entry_;
    const bool reached = entry >= 0 && entry < std::ssize(entries_) && entries_[entry].node == node;
    if (!reached) continue;
    int& last = entries_[entry].last_target;
    targets_.push_back({.output = options_.targets[i].output, .index = static_cast<int>(i), .before = last});
    last = static_cast<int>(targets_.size()) - 1;
  }
  // What an edge leads to was recorded earlier.
  std::vector<int> order(entries_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return entries_[a].node->sequence() < entries_[b].node->sequence(); });
  for (const int index : order) {
    Entry& entry = entries_[index];
    const absl::Span<const TapeNode::Edge> edges = EdgesOf(*entry.node);
    entry.leads =
        entry.last_target >= 0 ||
        std::any_of(edges.begin(), edges.end(), [&](const TapeNode::Edge& edge) { return Leads(edge); });
  }
  for (const Entry& entry : entries_) {
    if (entry.leads) continue;
    for (const TapeNode::Edge& edge : EdgesOf(*entry.node)) {
      if (edge.node) --entries_[edge.node->pass_entry_].uses;
    }
  }
}

void BackwardPass::Start(const TapeNode::Edge& root, DTensor seed) {
  if (Leads(root)) {
    Deliver(root, std::move(seed));
  } else if (options_.deferred != nullptr) {
    options_.deferred->push_back({.node = {}, .gradients = {std::move(seed)}, .wanted = {}, .edge = root});
  }
}

[[gnu::always_inline]] inline void BackwardPass::RunFirst() {
  std::pop_heap(ready_.begin(), ready_.end(), RunsLater);
  Entry& entry = entries_[ready_.back()->pass_entry_];
  ready_.pop_back();
  entry.has_run = true;
  RunNode(entry);
}

void BackwardPass::RunReady() {
  while (!ready_.empty()) RunFirst();
}

// Of what has come for `node` and one more term; both are defined.
DTensor BackwardPass::Sum(const TapeNode& node, DTensor sum, DTensor gradient) {
  std::optional<PurposeGuard> purpose;
  std::optional<NoImplicitChecksGuard> planned;
  if (node.TakesAnyLayout()) {
    // To add a leaf's gradients may move them: a part of bringing them to rest.
    purpose.emplace(context_.state(), Purpose::kGrad);
    planned.emplace(context_.state());
  }
  if (options_.create_graph) {
    const DType dtype = WiderOf(sum.dtype(), gradient.dtype());
    const auto widened = [dtype](const DTensor& x) {
      return x.dtype() == dtype ? x : Call(kCast, {x}, {.dtype = dtype});
    };
    return Call(kAdd, {widened(sum), widened(gradient)});
  }
  Accumulate(sum, std::move(gradient));
  return sum;
}

// One more term, which is defined.
[[gnu::always_inline]] inline void BackwardPass::Add(Entry& entry, const TapeNode::Edge& edge,
                                                     DTensor gradient) {
  const DType arriving = gradient.impl()->type.dtype;
  const DType dtype = edge.node->SumDType(arriving);
  if (dtype != arriving) gradient = Call(kCast, {gradient}, {.dtype = dtype});
  DTensor& sum = entry.gradients[edge.output];
  sum = sum.defined() ? Sum(*edge.node, std::move(sum), std::move(gradient)) : std::move(gradient);
}

// One use has said all it has to say; `gradient` may be undefined.
[[gnu::always_inline]] inline void BackwardPass::Deliver(const TapeNode::Edge& edge, DTensor gradient) {
  Entry& entry = entries_[edge.node->pass_entry_];
  if (gradient.defined()) Add(entry, edge, std::move(gradient));
  if (--entry.uses > 0) return;
  ready_.push_back(entry.node);
  std::push_heap(ready_.begin(), ready_.end(), RunsLater);
}

// Only as the last that the leaf waits for: so terms are summed in the order in which they are without it.
bool BackwardPass::DeliverEarly(const TapeNode::Edge& edge, DTensor& gradient) {
  if (!edge.node->TakesEarly()) return false;
  const TapeNode* node = edge.node.get();
  while (entries_[node->pass_entry_].uses == 1 && !IsLeaf(*node)) node = node->edges()[0].node.get();
  if (entries_[node->pass_entry_].uses != 1) return false;
  Entry& entry = entries_[edge.node->pass_entry_];
  Add(entry, edge, std::move(gradient));
  entry.uses = 0;
  entry.has_run = true;
  RunNode(entry);
  while (!ready_.empty() && IsLeaf(*ready_.front())) RunFirst();
  return true;
}

// Of one run of a node of the outermost pass. Of operands beyond the first 64 nothing goes early.
class BackwardPass::NodeDelivery final : public EarlyDelivery {
 public:
  static constexpr int kMostOperands = 64;

  NodeDelivery(BackwardPass& pass, const TapeNode& node) : pass_(pass), node_(node) {}

  bool Take(int operand, DTensor& gradient) override {
    const bool takes = operand < kMostOperands && pass_.DeliverEarly(node_.edges()[operand], gradient);
    if (takes) delivered_ |= uint64_t{1} << operand;
    return takes;
  }
  uint64_t delivered() const { return delivered_; }

 private:
  BackwardPass& pass_;
  const TapeNode& node_;
  uint64_t delivered_ = 0;  // operands, a bit each
};

void BackwardPass::RunNode(Entry& entry) {
  TapeNode& node = *entry.node;
  DTensors& gradients = entry.gradients;
  const PathGuard path(context_.state(), node.path_id());
  const bool reached =
      node.RunsUnreached() || std::any_of(gradients.begin(), gradients.end(),
                                          [](const DTensor& gradient) { return gradient.defined(); });
  for (int i = entry.last_target; i >= 0; i = targets_[i].before) {
    taken_[targets_[i].index] = gradients[targets_[i].output];
  }
  const absl::Span<const TapeNode::Edge> edges = EdgesOf(node);
  if (edges.empty()) {
    if (reached && !has_targets()) RunLeaf(node, absl::MakeSpan(gradients));
    gradients.clear();
    return;
  }
  if (!has_targets()) {
    DTensors results;
    NodeDelivery early(*this, node);
    const bool is_outermost = context_.state().outermost_pass() == this;
    if (reached) {
      results = node.Backward(context_, gradients,
                              {.retain = options_.retain_graph, .early = is_outermost ? &early : nullptr});
    }
    gradients.clear();  // their memory is free, or may be added to in place, as soon as their reader is done
    DeliverOn(node, &results, {}, early.delivered());
    return;
  }
  absl::InlinedVector<bool, 4> now, later;
  for (const TapeNode::Edge& edge : edges) {
    now.push_back(Leads(edge));
    later.push_back(edge.node && !now.back());
  }
  const bool defers = options_.deferred != nullptr && reached && Any(later);
  DTensors results;
  if (reached && Any(now)) {
    results = node.Backward(context_, gradients,
                            {.wanted = now, .retain = options_.retain_graph || defers, .is_half = defers});
  }
  if (defers) {
    options_.deferred->push_back({IntrusivePtr<TapeNode>(&node), std::move(gradients), later, {}});
  }
  gradients.clear();
  DeliverOn(node, &results, now);
}

// Delivers what a node made: to all its operands that want it, or to those that are `wanted`, but for those that have it.
[[gnu::always_inline]] inline void BackwardPass::DeliverOn(TapeNode& node, DTensors* results,
                                                           absl::Span<const bool> wanted,
                                                           uint64_t delivered) {
  const absl::Span<const TapeNode::Edge> edges = node.edges();
  results->resize(edges.size());
  for (size_t i = 0; i < edges.size(); ++i) {
    if (!edges[i].node || (!wanted.empty() && !wanted[i])) continue;
    const bool has_it = delivered != 0 && i < NodeDelivery::kMostOperands && (delivered >> i & 1) != 0;
    if (!has_it) Deliver(edges[i], std::move((*results)[i]));
  }
}

// The outermost pass delivers; an inner one hands on.
void BackwardPass::RunLeaf(TapeNode& leaf, absl::Span<DTensor> gradients) {
  BackwardPass& outermost = *context_.state().outermost_pass();
  if (&outermost != this) return outermost.Receive(leaf, std::move(gradients[0]));
  if (gradients.size() != 1) {  // not a leaf, though it has no operands
    leaf.Backward(context_, gradients, {});
    return;
  }
  DTensor sum = std::move(gradients[0]);
  for (auto& [of, gradient] : received_) {
    if (of.get() == &leaf && gradient.defined()) {
      sum = Sum(leaf, std::move(sum), std::exchange(gradient, DTensor()));
    }
  }
  leaf.TakeGradient(context_, std::move(sum));
}

void BackwardPass::Receive(TapeNode& leaf, DTensor gradient) {
  for (const Entry& entry : entries_) {
    if (entry.node != &leaf || !entry.has_run || leaf.sink() == nullptr) continue;
    Throw(absl::StatusCode::kFailedPrecondition, "Backward: a pass within another has a gradient of ",
          leaf.Name(), ", which the outer one has brought to rest: a node that runs a pass of its own needs ",
          "edges to the leaves that this reaches");
  }
  for (auto& [of, sum] : received_) {
    if (of.get() != &leaf) continue;
    sum = sum.defined() ? Sum(leaf, std::move(sum), std::move(gradient)) : std::move(gradient);
    return;
  }
  received_.emplace_back(IntrusivePtr<TapeNode>(&leaf), std::move(gradient));
}

void BackwardPass::DeliverReceived() {
  for (auto& [leaf, gradient] : received_) {
    if (!gradient.defined()) continue;
    const PathGuard path(context_.state(), leaf->path_id());
    leaf->TakeGradient(context_, std::exchange(gradient, DTensor()));
  }
}

}  // namespace weft
