#include "dtensor/functions/rearrange.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/call/call_observer.h"
#include "dtensor/context/rearrangement_cache.h"
#include "dtensor/functions/implicit_move.h"
#include "dtensor/redistribution/implicit.h"
#include "dtensor/tape/tape_node.h"
#include "mesh/redistribution/price.h"
#include "runtime/tensor/copy.h"
#include "runtime/trace/span.h"

namespace weft {
namespace {

using Runs = std::vector<DimRun>;

int64_t NumPieces(const DTensor& x, int dim) {
  int64_t pieces = 1;
  for (int axis : x.layout().ShardAxes(dim)) pieces *= x.context()->mesh().axis_size(axis);
  return pieces;
}

// Carries it out on this rank. All sources lie as the rearrangement says.
Tensor Exchange(MeshContext& context, const LoweredRearrangement& lowered, int dim,
                absl::Span<const DTensor> sources, double fill) {
  using Part = LoweredRearrangement::Part;
  const DType dtype = sources[0].dtype();
  const auto empty = [&](const Shape& shape) { return Tensor::Empty(context.allocator(), dtype, shape); };
  const auto source = [&](const Part& part) {
    return sources[part.source].ToLocal().Slice(dim, part.from, part.length);
  };
  const Tensor result = empty(lowered.result_shape);
  const auto place = [&](const Part& part) { return result.Slice(dim, part.to, part.length); };
  if (lowered.fills) FillTensor(result, fill);
  for (const Part& part : lowered.kept) CopyTensor(source(part), place(part));
  const auto total = [](absl::Span<const int64_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  const Tensor outgoing = empty({total(lowered.send_counts)});
  const Tensor incoming = empty({total(lowered.receive_counts)});
  // The next part of a flat buffer, in the shape of what it holds.
  const auto next = [](const Tensor& flat, const Shape& shape, int64_t* begin) {
    const Tensor part = flat.Slice(0, *begin, shape.num_elements()).Reshape(shape);
    *begin += shape.num_elements();
    return part;
  };
  int64_t begin = 0;
  for (const Part& part : lowered.sent) {
    const Tensor rows = source(part);
    if (rows.num_elements() > 0) CopyTensor(rows, next(outgoing, rows.shape(), &begin));
  }
  const Span span(context.world().tracer(), context.world().rank(), "comm", "rearrange");
  context.Group(lowered.axes)
      .AllToAll(outgoing, lowered.send_counts, incoming, lowered.receive_counts,
                {.tag = context.state().tag()})
      .Wait();
  begin = 0;
  for (const Part& part : lowered.received) {
    const Tensor rows = place(part);
    if (rows.num_elements() > 0) CopyTensor(next(incoming, rows.shape(), &begin), rows);
  }
  return result;
}

std::shared_ptr<const LoweredRearrangement> LowerCached(MeshContext& context,
                                                        const Rearrangement& rearrangement) {
  RearrangementCache& cache = context.rearrangement_cache();
  if (std::shared_ptr<const LoweredRearrangement> found = cache.Find(rearrangement)) return found;
  return cache.Insert(rearrangement, std::make_shared<const LoweredRearrangement>(
                                         Lower(rearrangement, context.mesh(), context.coordinate())));
}

// Holds what is about to move to the guards in force.
void CheckGuards(MeshContext& context, absl::string_view name, absl::Span<const DTensor> sources,
                 const Rearrangement& rearrangement, const LoweredRearrangement& lowered) {
  if (context.state().implicit_guard() == nullptr) return;
  ImplicitMoves moves(context);
  for (size_t i = 0; i < sources.size(); ++i) {
    moves.Add(absl::StrCat("operand ", i), sources[i].type(), sources[i].layout(), rearrangement.layout);
    moves.Add(
        absl::StrCat("operand ", i, " ", sources[i].type().ToString(), " would send ", lowered.num_bytes[i],
                     " bytes of dim ", rearrangement.dim, " to other ranks by all_to_all"),
        lowered.num_bytes[i]);
  }
  const auto call = [&] { return absl::StrCat(name, " along dim ", rearrangement.dim, ", which is split"); };
  moves.Check(name, call, [&] {
    return absl::StrCat("Redistribute first, so that dim ", rearrangement.dim, " is not split");
  });
}

// The gradient of a source: its runs the other way, zero where none begins.
class RearrangeNode final : public TapeNode {
 public:
  RearrangeNode(RankState& state, Edges edges, absl::Span<const DTensor> sources, const Layout& layout,
                int dim, absl::Span<const DimRun> runs)
      : TapeNode(state, std::move(edges), /*num_outputs=*/1),
        layout_(layout),
        dim_(dim),
        runs_(runs.begin(), runs.end()) {
    for (const DTensor& source : sources) extents_.push_back(source.shape()[dim]);
  }

  std::string Name() const override { return "rearrange"; }
  DTensors Backward(MeshContext& /*context*/, absl::Span<const DTensor> gradients,
                    const NodeRun& run) override {
    const DTensor gradient = MoveImplicitly("rearrange backward", "the gradient of the result", gradients[0],
                                            LayoutFor(gradients[0].layout()));
    DTensors results(extents_.size());
    for (size_t i = 0; i < extents_.size(); ++i) {
      if (!Wants(static_cast<int>(i), run)) continue;
      Runs back;
      for (const DimRun& run : runs_) {
        if (run.source == static_cast<int>(i)) back.push_back({0, run.to, run.from, run.length});
      }
      results[i] = Rearrange("rearrange backward", {gradient}, dim_, back, extents_[i]);
    }
    return results;
  }

 private:
  // As the sources were; along axes where they were Partial, a Partial gradient stays one.
  Layout LayoutFor(const Layout& arriving) const {
    Layout target = layout_;
    for (int axis : layout_.PartialAxes()) target = target.WithReplicate(axis);
    for (int axis : arriving.PartialAxes()) {
      if (layout_.IsPartial(axis)) target = target.WithPartial(axis, arriving.partial_op(axis));
    }
    return target;
  }

  Layout layout_;
  int dim_;
  Runs runs_;
  std::vector<int64_t> extents_;
};

// `layout` without the Partial axes that a rearrangement cannot keep: those that not all sources have alike,
// and where something else than zero, or another reduction than a sum, would come in.
Layout WithPartialsThatStay(const Layout& layout, absl::Span<const DTensor> sources, double fill) {
  Layout result = layout;
  for (int axis : layout.PartialAxes()) {
    const ReduceOp op = layout.partial_op(axis);
    const bool alike = std::all_of(sources.begin(), sources.end(), [&](const DTensor& source) {
      return source.layout().IsPartial(axis) && source.layout().partial_op(axis) == op;
    });
    const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAvg;
    if (!alike || !is_sum || fill != 0) result = result.WithReplicate(axis);
  }
  return result;
}

// The layout, of those sources that are split along `dim`, to which it is cheapest to bring the others.
Layout CommonLayout(absl::Span<const DTensor> sources, int dim, double fill) {
  const MeshContext& context = *sources[0].context();
  Layout best;
  double least = -1;
  for (const DTensor& candidate : sources) {
    if (!IsSplitAlong(candidate, dim)) continue;
    const Layout layout = WithPartialsThatStay(candidate.layout(), sources, fill);
    double microseconds = 0;
    for (const DTensor& source : sources) {
      if (source.layout() == layout) continue;
      microseconds += RedistributionMicroseconds(source.layout(), layout, source.type(), context.mesh(),
                                                 context.cost_model());
    }
    if (least < 0 || microseconds < least * (1 - 1e-9)) {
      least = microseconds;
      best = layout;
    }
  }
  WEFT_CHECK(least >= 0, "rearrange: no source is split along dim ", dim);
  return best;
}

}  // namespace

bool IsSplitAlong(const DTensor& x, int dim) { return NumPieces(x, dim) > 1; }

bool CanRearrange(const DTensor& x, int dim, int64_t extent) {
  return IsSplitAlong(x, dim) && extent >= NumPieces(x, dim);
}

DTensor Rearrange(absl::string_view name, absl::Span<const DTensor> sources, int dim,
                  absl::Span<const DimRun> runs, int64_t extent, double fill) {
  const IntrusivePtr<MeshContext>& context = sources[0].context();
  const Layout layout = CommonLayout(sources, dim, fill);
  Rearrangement rearrangement = {
      .sources = {}, .layout = layout, .dim = dim, .runs = {runs.begin(), runs.end()}, .extent = extent};
  for (const DTensor& source : sources) rearrangement.sources.push_back(source.type());
  const std::shared_ptr<const LoweredRearrangement> lowered = LowerCached(*context, rearrangement);
  if (CallObserver* const observer = context->state().call_observer(); observer != nullptr) {
    observer->OnRearrange(name, sources, rearrangement, *lowered);
  }
  CheckGuards(*context, name, sources, rearrangement, *lowered);
  DTensors moved;
  for (const DTensor& source : sources) moved.push_back(source.Redistribute(layout));
  const TensorType type = rearrangement.ResultType();
  Tensor local = Exchange(*context, *lowered, dim, moved, fill);
  DTensor result(MakeIntrusive<DTensorImpl>(context, layout, type, std::move(local)));
  const bool recorded =
      context->state().grad_enabled() &&
      std::any_of(moved.begin(), moved.end(), [](const DTensor& source) { return source.requires_grad(); });
  if (recorded) {
    TapeNode::Edges edges;
    for (const DTensor& source : moved) edges.push_back({source.impl()->node, source.impl()->output});
    result.impl()->node = IntrusivePtr<TapeNode>(
        new RearrangeNode(context->state(), std::move(edges), moved, layout, dim, runs));
  }
  return result;
}

DTensor SplitAs(absl::string_view name, const DTensor& x, const DTensor& y, int dim) {
  Layout layout = y.layout();
  for (int axis : x.layout().ShardAxes(dim)) {
    if (layout.IsPartial(axis)) layout = layout.WithShard(axis, dim);
  }
  return MoveImplicitly(name, "the result", y, layout);
}

}  // namespace weft
