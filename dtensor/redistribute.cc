#include "dtensor/redistribute.h"

#include <algorithm>

#include "mesh/redistribution_planner.h"
#include "mesh/shard_math.h"
#include "runtime/tensor/copy.h"
#include "runtime/trace/span.h"

namespace weft {
namespace {

// One step of a plan on one rank: where the pieces of the group's members lie along a dim.
class StepExecutor {
 public:
  StepExecutor(MeshContext& context, const TensorType& type, const Layout& from,
               const RedistributionStep& step)
      : context_(context), type_(type), from_(from), step_(step) {}

  Tensor Run(const Tensor& local) {
    switch (step_.kind) {
      case StepKind::kAllGather:
        return AllGather(local);
      case StepKind::kReduceScatter:
        return ReduceScatter(local);
      case StepKind::kAllReduce:
        return AllReduce(local);
      case StepKind::kAllToAll:
        return AllToAll(local);
      case StepKind::kSlice:
        return Piece(local, step_.to_dim, from_, step_.result, context_.coordinate());
      case StepKind::kToPartial:
        return ToPartial(local);
    }
    WEFT_CHECK(false, "unknown redistribution step");
  }

 private:
  int axis() const { return step_.axes[0]; }
  int64_t group_size() const { return context_.mesh().axis_size(axis()); }

  // This rank's box under `layout`, if it stood at `index` along the step's axis.
  ShardBox BoxAt(const Layout& layout, int64_t index) const {
    absl::InlinedVector<int64_t, DeviceMesh::kMaxAxes> coordinate(context_.coordinate().begin(),
                                                                  context_.coordinate().end());
    coordinate[axis()] = index;
    return LocalBox(type_.shape, layout, context_.mesh(), coordinate);
  }

  ShardBox BoxHere(const Layout& layout) const {
    return LocalBox(type_.shape, layout, context_.mesh(), context_.coordinate());
  }

  // The part of `whole` (a piece under `outer`) along `dim` that `inner`'s box at `coordinate` covers. A
  // view.
  Tensor Piece(const Tensor& whole, int dim, const Layout& outer, const Layout& inner,
               absl::Span<const int64_t> coordinate) const {
    const ShardBox box = LocalBox(type_.shape, inner, context_.mesh(), coordinate);
    return whole.Slice(dim, box.offset[dim] - BoxHere(outer).offset[dim], box.shape[dim]);
  }

  // The pieces of `whole` along `dim` that the members hold under `inner`, by group rank. Views.
  std::vector<Tensor> Pieces(const Tensor& whole, int dim, const Layout& outer, const Layout& inner) const {
    const int64_t origin = BoxHere(outer).offset[dim];
    std::vector<Tensor> pieces;
    for (int64_t index = 0; index < group_size(); ++index) {
      const ShardBox box = BoxAt(inner, index);
      pieces.push_back(whole.Slice(dim, box.offset[dim] - origin, box.shape[dim]));
    }
    return pieces;
  }

  // True if slices of the row-major `shape` along `dim` lie one after another: every dim outside it has
  // extent 1.
  static bool SlicesAreContiguous(const Shape& shape, int dim) {
    return std::all_of(shape.begin(), shape.begin() + dim, [](int64_t extent) { return extent == 1; });
  }

  static std::vector<int64_t> Counts(const std::vector<Tensor>& pieces) {
    std::vector<int64_t> counts;
    for (const Tensor& piece : pieces) counts.push_back(piece.num_elements());
    return counts;
  }

  Tensor Empty(const Shape& shape) const { return Tensor::Empty(context_.allocator(), type_.dtype, shape); }
  Tensor Contiguous(const Tensor& tensor) const {
    return tensor.IsContiguous() ? tensor : CloneTensor(tensor, context_.allocator());
  }
  static Tensor Flat(const Tensor& tensor) { return tensor.Reshape({tensor.num_elements()}); }

  // Lays pieces one after another in a flat buffer, and back. Where the slices already lie so, no element
  // moves.
  Tensor Pack(const Tensor& whole, int dim, const std::vector<Tensor>& pieces) const {
    if (whole.IsContiguous() && SlicesAreContiguous(whole.shape(), dim)) return Flat(whole);
    const Tensor flat = Empty({whole.num_elements()});
    int64_t begin = 0;
    for (const Tensor& piece : pieces) {
      CopyTensor(piece, flat.Slice(0, begin, piece.num_elements()).Reshape(piece.shape()));
      begin += piece.num_elements();
    }
    return flat;
  }
  static void Unpack(const Tensor& flat, const std::vector<Tensor>& pieces) {
    int64_t begin = 0;
    for (const Tensor& piece : pieces) {
      CopyTensor(flat.Slice(0, begin, piece.num_elements()).Reshape(piece.shape()), piece);
      begin += piece.num_elements();
    }
  }

  CommOptions Options() const { return {.tag = context_.state().tag()}; }

  Tensor AllGather(const Tensor& local) {
    const int dim = step_.from_dim;
    const Tensor result = Empty(BoxHere(step_.result).shape);
    const std::vector<Tensor> pieces = Pieces(result, dim, step_.result, from_);
    const bool direct = SlicesAreContiguous(result.shape(), dim);
    const Tensor gathered = direct ? Flat(result) : Empty({result.num_elements()});
    context_.Group({axis()}).AllGather(Flat(Contiguous(local)), gathered, Counts(pieces), Options()).Wait();
    if (!direct) Unpack(gathered, pieces);
    return result;
  }

  Tensor ReduceScatter(const Tensor& local) {
    const int dim = step_.to_dim;
    const std::vector<Tensor> pieces = Pieces(local, dim, from_, step_.result);
    const Tensor result = Empty(BoxHere(step_.result).shape);
    context_.Group({axis()})
        .ReduceScatter(Pack(local, dim, pieces), Flat(result), Counts(pieces), step_.op, Options())
        .Wait();
    return result;
  }

  Tensor AllReduce(const Tensor& local) {
    AxisList axes = step_.axes;
    std::sort(axes.begin(), axes.end());
    const Tensor result = Empty(local.shape());
    context_.Group(axes).AllReduce(Flat(Contiguous(local)), Flat(result), step_.op, Options()).Wait();
    return result;
  }

  Tensor AllToAll(const Tensor& local) {
    const std::vector<Tensor> sends = Pieces(local, step_.to_dim, from_, step_.result);
    const Tensor result = Empty(BoxHere(step_.result).shape);
    const std::vector<Tensor> receives = Pieces(result, step_.from_dim, step_.result, from_);
    const bool direct = SlicesAreContiguous(result.shape(), step_.from_dim);
    const Tensor received = direct ? Flat(result) : Empty({result.num_elements()});
    context_.Group({axis()})
        .AllToAll(Pack(local, step_.to_dim, sends), Counts(sends), received, Counts(receives), Options())
        .Wait();
    if (!direct) Unpack(received, receives);
    return result;
  }

  Tensor ToPartial(const Tensor& local) {
    if (step_.op == ReduceOp::kMin || step_.op == ReduceOp::kMax) return local;
    const bool holder = context_.coordinate()[axis()] == 0;
    const bool scaled = step_.op == ReduceOp::kAvg && group_size() > 1;
    if (holder && !scaled) return local;
    const Tensor result = Empty(local.shape());
    if (!holder) {
      FillTensor(result, step_.op == ReduceOp::kProduct ? 1 : 0);
      return result;
    }
    // The average of {n * value, 0, ..., 0} is the value; n copies add up to n * value exactly for n a power
    // of two, and to rounding else.
    CopyTensor(local, result);
    for (int64_t i = 1; i < group_size(); ++i) AccumulateTensor(local, result, ReduceOp::kSum);
    return result;
  }

  MeshContext& context_;
  const TensorType& type_;
  const Layout& from_;
  const RedistributionStep& step_;
};

}  // namespace

Tensor RedistributeLocal(MeshContext& context, const Tensor& local, const TensorType& type,
                         const Layout& from, const Layout& to) {
  if (from == to) return local;
  const Redistribution plan = PlanRedistribution(from, to, context.mesh());
  Tensor current = local;
  Layout layout = from;
  for (const RedistributionStep& step : plan.steps) {
    const Span span(context.world().tracer(), context.world().rank(), "comm", StepKindName(step.kind));
    current = StepExecutor(context, type, layout, step).Run(current);
    layout = step.result;
  }
  return current;
}

Layout PlacedAlong(const Layout& layout, int axis, const Placement& placement) {
  const Layout placed = layout.With(axis, placement);
  return placed.placement(axis) == layout.placement(axis) ? layout : placed;
}

}  // namespace weft
