#include "dtensor/functions/rearrange.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "dtensor/redistribution/redistribute.h"
#include "dtensor/tape/tape_node.h"
#include "mesh/redistribution/price.h"
#include "mesh/shard_math.h"
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

// One exchange on one rank. All sources lie as `layout`.
class Exchange {
 public:
  Exchange(MeshContext& context, const Layout& layout, int dim, absl::Span<const DTensor> sources,
           absl::Span<const DimRun> runs, const TensorType& result)
      : context_(context), layout_(layout), dim_(dim), sources_(sources), runs_(runs), result_(result) {
    axes_ = layout.ShardAxes(dim);
    std::sort(axes_.begin(), axes_.end());
  }

  Tensor Run(double fill) {
    Communicator& group = context_.Group(axes_);
    const std::vector<Place> places = Places(group.size());
    const Place& here = places[group.rank()];
    const Tensor result = Empty(here.box.shape);
    std::vector<Part> sends;
    std::vector<Part> receives;
    std::vector<int64_t> send_counts(group.size(), 0);
    std::vector<int64_t> receive_counts(group.size(), 0);
    int64_t filled = 0;
    for (int member = 0; member < group.size(); ++member) {
      for (const DimRun& run : runs_) {
        const Range out = Overlap(run, here, places[member]);
        const Range in = Overlap(run, places[member], here);
        if (member != group.rank()) {
          Add(PieceToSend(run, here, out), sends, send_counts[member]);
          Add(result.Slice(dim_, in.offset - here.box.offset[dim_], in.size), receives,
              receive_counts[member]);
        }
        filled += in.size;
      }
    }
    if (filled < here.box.shape[dim_]) FillTensor(result, fill);
    for (const DimRun& run : runs_) {
      const Range stays = Overlap(run, here, here);
      CopyTensor(PieceToSend(run, here, stays),
                 result.Slice(dim_, stays.offset - here.box.offset[dim_], stays.size));
    }
    const Tensor outgoing = Pack(sends);
    const Tensor incoming = Empty({Total(receives)});
    const Span span(context_.world().tracer(), context_.world().rank(), "comm", "rearrange");
    group.AllToAll(outgoing, send_counts, incoming, receive_counts, {.tag = context_.state().tag()}).Wait();
    Unpack(incoming, receives);
    return result;
  }

 private:
  // What a member holds: a range of every source, and its part of the result.
  struct Place {
    std::vector<Range> sources;
    ShardBox box;
  };
  using Part = Tensor;  // a view

  std::vector<Place> Places(int size) const {
    std::vector<Place> places(size);
    for (int member = 0; member < size; ++member) {
      absl::InlinedVector<int64_t, DeviceMesh::kMaxAxes> coordinate(context_.coordinate().begin(),
                                                                    context_.coordinate().end());
      int64_t rest = member;
      for (size_t i = axes_.size(); i-- > 0;) {  // row-major along the axes
        coordinate[axes_[i]] = rest % context_.mesh().axis_size(axes_[i]);
        rest /= context_.mesh().axis_size(axes_[i]);
      }
      for (const DTensor& source : sources_) {
        const ShardBox box = LocalBox(source.shape(), layout_, context_.mesh(), coordinate);
        places[member].sources.push_back({box.offset[dim_], box.shape[dim_]});
      }
      places[member].box = LocalBox(result_.shape, layout_, context_.mesh(), coordinate);
    }
    return places;
  }

  // The part of the result, along the dim, that `run` brings from one member to another. An empty one lies at
  // the beginning of the receiver's.
  Range Overlap(const DimRun& run, const Place& from, const Place& to) const {
    const Range& held = from.sources[run.source];
    const int64_t shift = run.to - run.from;
    const int64_t begin = std::max({held.offset + shift, run.to, to.box.offset[dim_]});
    const int64_t end = std::min(
        {held.offset + held.size + shift, run.to + run.length, to.box.offset[dim_] + to.box.shape[dim_]});
    return begin < end ? Range{begin, end - begin} : Range{to.box.offset[dim_], 0};
  }

  Tensor PieceToSend(const DimRun& run, const Place& here, const Range& part) const {
    const int64_t begin = part.offset - run.to + run.from - here.sources[run.source].offset;
    return sources_[run.source].ToLocal().Slice(dim_, part.size == 0 ? 0 : begin, part.size);
  }

  static void Add(const Tensor& part, std::vector<Part>& parts, int64_t& count) {
    if (part.num_elements() == 0) return;
    count += part.num_elements();
    parts.push_back(part);
  }

  static int64_t Total(const std::vector<Part>& parts) {
    int64_t total = 0;
    for (const Part& part : parts) total += part.num_elements();
    return total;
  }

  Tensor Empty(const Shape& shape) const { return Tensor::Empty(context_.allocator(), result_.dtype, shape); }

  Tensor Pack(const std::vector<Part>& parts) const {
    const Tensor flat = Empty({Total(parts)});
    int64_t begin = 0;
    for (const Part& part : parts) {
      CopyTensor(part, flat.Slice(0, begin, part.num_elements()).Reshape(part.shape()));
      begin += part.num_elements();
    }
    return flat;
  }
  static void Unpack(const Tensor& flat, const std::vector<Part>& parts) {
    int64_t begin = 0;
    for (const Part& part : parts) {
      CopyTensor(flat.Slice(0, begin, part.num_elements()).Reshape(part.shape()), part);
      begin += part.num_elements();
    }
  }

  MeshContext& context_;
  const Layout& layout_;
  int dim_;
  absl::Span<const DTensor> sources_;
  absl::Span<const DimRun> runs_;
  const TensorType& result_;
  AxisList axes_;
};

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
    const DTensor gradient = gradients[0].Redistribute(LayoutFor(gradients[0].layout()));
    DTensors results(extents_.size());
    for (size_t i = 0; i < extents_.size(); ++i) {
      if (!Wants(static_cast<int>(i), run)) continue;
      Runs back;
      for (const DimRun& run : runs_) {
        if (run.source == static_cast<int>(i)) back.push_back({0, run.to, run.from, run.length});
      }
      results[i] = Rearrange({gradient}, dim_, back, extents_[i]);
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

DTensor Rearrange(absl::Span<const DTensor> sources, int dim, absl::Span<const DimRun> runs, int64_t extent,
                  double fill) {
  const IntrusivePtr<MeshContext>& context = sources[0].context();
  const Layout layout = CommonLayout(sources, dim, fill);
  DTensors moved;
  for (const DTensor& source : sources) moved.push_back(source.Redistribute(layout));
  TensorType type = sources[0].type();
  type.shape[dim] = extent;
  Tensor local = Exchange(*context, layout, dim, moved, runs, type).Run(fill);
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

}  // namespace weft
