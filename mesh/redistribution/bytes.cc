#include "mesh/redistribution/bytes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <vector>

#include "mesh/redistribution/shard_nests.h"
#include "mesh/shard_math.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

int64_t CeilLog2(int64_t n) { return std::bit_width(static_cast<uint64_t>(n - 1)); }

// How many ranks hold each piece, or a term of it.
int64_t NumCopies(const Layout& layout, const DeviceMesh& mesh) {
  int64_t copies = 1;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!layout.IsShard(axis)) copies *= mesh.axis_size(axis);
  }
  return copies;
}

// Whether what `piece` is cut into lies in runs: it is cut along one dim, and those outside it have extent 1.
// Messages of a collective must also follow each other in the order of its members, which one axis ensures.
bool CutsAreRuns(const Shape& piece, uint32_t cut_dims, bool in_order) {
  if (cut_dims == 0) return true;
  if (!in_order || !std::has_single_bit(cut_dims)) return false;
  return std::all_of(piece.begin(), piece.begin() + std::countr_zero(cut_dims),
                     [](int64_t extent) { return extent <= 1; });
}

// The dims along which `inner` cuts the pieces of `outer` further, or anew.
uint32_t CutDims(const Layout& outer, const Layout& inner) {
  uint32_t dims = 0;
  for (int dim = 0; dim < outer.ndim(); ++dim) {
    const AxisList before = outer.ShardAxes(dim), after = inner.ShardAxes(dim);
    const bool within =
        after.size() <= before.size() && std::equal(after.begin(), after.end(), before.begin());
    if (!within) dims |= 1u << dim;
  }
  return dims;
}

// Neighbouring indices along an axis, of which the first stands for all.
struct Run {
  int64_t first = 0;
  int64_t count = 1;
};
using Runs = absl::InlinedVector<Run, 8>;
using Places = std::array<size_t, DeviceMesh::kMaxAxes>;  // of a run, by axis

// A rank keeps a box: a product over dims. So the sum over ranks splits by dims, but for the axes that more
// than one dim has a part of: each dim is first summed over the axes that it alone has. Along an axis,
// indices are taken in runs within which nothing changes.
class KeptCounter {
 public:
  KeptCounter(const Layout& from, const Layout& to, const Shape& shape, const DeviceMesh& mesh)
      : mesh_(mesh), shape_(shape), from_(NestsOf(from, mesh)), to_(NestsOf(to, mesh)) {
    for (int dim = 0; dim < shape.ndim(); ++dim) {
      const int num_settled = NumSettled(from_[dim], to_[dim]);
      held_[dim] = NestMask(from_[dim], num_settled);
      wanted_[dim] = NestMask(to_[dim], num_settled);
      const AxisMask own = NestMask(from_[dim]) | NestMask(to_[dim]);
      shared_ |= any_ & own;
      any_ |= own;
    }
    for (int axis : AxesIn(any_)) runs_[axis] = RunsAlong(axis);
  }

  int64_t Count() const {
    std::array<std::vector<int64_t>, Layout::kMaxDims> sums;
    for (int dim = 0; dim < shape_.ndim(); ++dim) sums[dim] = SumOver(dim);
    int64_t kept = 0;
    ForEachRun(shared_, [&](const Coordinate&, const Places& places) {
      int64_t product = NumAlike(shared_, places);
      for (int dim = 0; dim < shape_.ndim(); ++dim) product *= sums[dim][SumIndex(dim, places)];
      kept += product;
    });
    return kept * (mesh_.num_ranks() / NumRanksAlong(any_, mesh_));
  }

 private:
  // Whether what a dim is cut into overlaps by all that is cut, summed over the axes that cut it: so it is of
  // two partitions of one interval, if no axis is in both and none has a part in another dim.
  bool SumsToSettled(int dim) const {
    return (held_[dim] & wanted_[dim]) == 0 && ((held_[dim] | wanted_[dim]) & shared_) == 0;
  }
  // The axes that a dim has to be summed over.
  AxisMask Summed(int dim) const {
    const AxisMask settled = NestMask(from_[dim]) & ~held_[dim];
    return SumsToSettled(dim) ? settled : settled | held_[dim] | wanted_[dim];
  }

  Runs RunsAlong(int axis) const {
    const int64_t size = mesh_.axis_size(axis);
    IndexList starts = TellingIndices(from_, to_, shape_, axis, mesh_);
    bool all = false;  // every index counts for itself
    for (int dim = 0; dim < shape_.ndim(); ++dim) {
      const AxisMask changing = held_[dim] | wanted_[dim];
      // Where a dim is cut on one side alone, sizes decide.
      const bool is_cut_anew = held_[dim] != 0 && wanted_[dim] != 0 && !SumsToSettled(dim);
      if (!is_cut_anew || (changing >> axis & 1) == 0) continue;
      const bool is_one_each =
          std::has_single_bit(held_[dim]) && std::has_single_bit(wanted_[dim]) && held_[dim] != wanted_[dim];
      if (is_one_each && NumRanksAlong(changing & ~(1u << axis), mesh_) < size / 4) {
        AppendCrossings(dim, axis, &starts);
      } else {
        all = true;
      }
    }
    if (all) {
      starts.resize(size);
      std::iota(starts.begin(), starts.end(), 0);
    }
    KeepDistinct(starts);
    Runs runs;
    for (size_t i = 0; i < starts.size(); ++i) {
      runs.push_back({starts[i], (i + 1 < starts.size() ? starts[i + 1] : size) - starts[i]});
    }
    return runs;
  }

  // Of a dim that `axis` and one other cut, each on its side: the chunks of `axis` in which the other's
  // begin, and those after them. Between these a chunk lies wholly in one of the other's, or in none.
  void AppendCrossings(int dim, int axis, IndexList* starts) const {
    const int64_t size = mesh_.axis_size(axis);
    const int64_t others = NumRanksAlong((held_[dim] | wanted_[dim]) & ~(1u << axis), mesh_);
    IndexList extents = {shape_[dim]};  // that the piece cut by both may have
    for (int i = 0; i + 1 < from_[dim].size; ++i) {
      extents = ChunkExtents(extents, mesh_.axis_size(from_[dim].axes[i]));
    }
    for (int64_t extent : extents) {
      if (extent == 0) continue;
      const int64_t chunk = (extent + size - 1) / size, other_chunk = (extent + others - 1) / others;
      for (int64_t place = other_chunk; place < extent; place += other_chunk) {
        starts->push_back(std::min(place / chunk, size - 1));
        starts->push_back(std::min(place / chunk + 1, size - 1));
      }
    }
  }

  // Calls body(coordinate, places) for every combination of runs along `axes`, the other axes staying at 0.
  template <class Body>
  void ForEachRun(AxisMask mask, const Body& body) const {
    const AxisList axes = AxesIn(mask);
    Coordinate coordinate = {};
    Places places = {};
    for (bool more = true; more;) {
      for (int axis : axes) coordinate[axis] = runs_[axis][places[axis]].first;
      body(coordinate, places);
      more = false;
      for (int axis : axes) {
        if (++places[axis] < runs_[axis].size()) {
          more = true;
          break;
        }
        places[axis] = 0;
      }
    }
  }

  // Coordinates along `axes` that these runs stand for.
  int64_t NumAlike(AxisMask axes, const Places& places) const {
    int64_t count = 1;
    for (int axis = 0; axes >> axis != 0; ++axis) {
      if (axes >> axis & 1) count *= runs_[axis][places[axis]].count;
    }
    return count;
  }

  size_t SumIndex(int dim, const Places& places) const {
    size_t index = 0;
    for (int axis : AxesIn(Summed(dim) & shared_)) index = index * runs_[axis].size() + places[axis];
    return index;
  }

  // What is kept along `dim`, by the runs along its shared axes, for one coordinate along those.
  std::vector<int64_t> SumOver(int dim) const {
    const AxisMask summed = Summed(dim);
    size_t num_sums = 1;
    for (int axis : AxesIn(summed & shared_)) num_sums *= runs_[axis].size();
    std::vector<int64_t> sums(num_sums);
    const Range whole = {0, shape_[dim]};
    const bool sums_to_settled = SumsToSettled(dim);
    Nest before = from_[dim];
    if (sums_to_settled) before.size -= std::popcount(held_[dim]);
    ForEachRun(summed, [&](const Coordinate& coordinate, const Places& places) {
      const Range held = PieceAt(whole, before, coordinate, mesh_);
      const int64_t kept =
          sums_to_settled ? held.size : Overlap(held, PieceAt(whole, to_[dim], coordinate, mesh_));
      sums[SumIndex(dim, places)] += kept * NumAlike(summed & ~shared_, places);
    });
    return sums;
  }

  const DeviceMesh& mesh_;
  const Shape& shape_;
  const Nests from_;
  const Nests to_;
  std::array<AxisMask, Layout::kMaxDims> held_ =
      {};  // axes that split the dim before, inside those that stay
  std::array<AxisMask, Layout::kMaxDims> wanted_ = {};  // and after
  AxisMask any_ = 0;
  AxisMask shared_ = 0;  // axes that more than one dim has a part of
  std::array<Runs, DeviceMesh::kMaxAxes> runs_;
};

}  // namespace

int64_t NumKept(const Layout& from, const Layout& to, const Shape& shape, const DeviceMesh& mesh) {
  return KeptCounter(from, to, shape, mesh).Count();
}

int64_t StepBytes(const RedistributionStep& step, const Layout& from, const TensorType& type,
                  const DeviceMesh& mesh) {
  CheckOnMesh(from, type.shape, mesh);
  const int64_t group_size = NumRanksAlong(MaskOf(step.axes), mesh);
  // Summed over all ranks, the pieces of a layout hold every element as often as it has copies.
  const int64_t held = type.shape.num_elements() * NumCopies(from, mesh);
  switch (step.kind) {
    case StepKind::kReduceScatter:
      return held / group_size * (group_size - 1) * ItemSize(type.dtype);
    case StepKind::kAllReduce:
      return 2 * (held / group_size) * (group_size - 1) * ItemSize(type.dtype);
    case StepKind::kAllGather:
    case StepKind::kAllToAll:
    case StepKind::kPermute:
    case StepKind::kSendRegions:
      return (type.shape.num_elements() * NumCopies(step.result, mesh) -
              NumKept(from, step.result, type.shape, mesh)) *
             ItemSize(type.dtype);
    case StepKind::kSlice:
    case StepKind::kToPartial:
      break;
  }
  return 0;
}

int64_t TotalBytes(const Redistribution& plan, const TensorType& type, const DeviceMesh& mesh) {
  int64_t bytes = 0;
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    bytes += StepBytes(step, from, type, mesh);
    from = step.result;
  }
  return bytes;
}

StepTraffic ReduceScatterTraffic(AxisMask axes, int64_t elements, DType dtype, const DeviceMesh& mesh) {
  const int64_t n = NumRanksAlong(axes, mesh);
  return {.bytes = (n - 1) * elements * ItemSize(dtype), .rounds = CeilLog2(n), .axes = axes};
}

StepTraffic AllReduceTraffic(AxisMask axes, int64_t elements, DType dtype, const DeviceMesh& mesh) {
  const int64_t n = NumRanksAlong(axes, mesh);
  // n-1 terms of its own share, and everybody else's shares.
  const int64_t share = (elements + n - 1) / n;
  return {.bytes = (elements + (n - 2) * share) * ItemSize(dtype) * (n > 1),
          .rounds = 2 * CeilLog2(n),
          .axes = axes};
}

StepTraffic MoveTraffic(const Move& move, DType dtype, const DeviceMesh& mesh) {
  const bool is_gather = move.kind == StepKind::kAllGather;
  return {.bytes = move.lacked * ItemSize(dtype),
          .rounds = is_gather ? CeilLog2(NumRanksAlong(move.axes, mesh)) : move.messages,
          .axes = move.axes};
}

StepTraffic WorstRankTraffic(const RedistributionStep& step, const Layout& from, const TensorType& type,
                             const DeviceMesh& mesh) {
  const AxisMask axes = MaskOf(step.axes);
  if (!Communicates(step.kind)) return {};
  if (step.kind == StepKind::kReduceScatter) {
    return ReduceScatterTraffic(axes, MaxLocalElements(type.shape, step.result, mesh), type.dtype, mesh);
  }
  if (step.kind == StepKind::kAllReduce)
    return AllReduceTraffic(axes, MaxLocalElements(type.shape, from, mesh), type.dtype, mesh);
  return MoveTraffic(DescribeMove(from, step.result, type.shape, mesh), type.dtype, mesh);
}

int64_t WorstRankBytes(const Redistribution& plan, const TensorType& type, const DeviceMesh& mesh) {
  int64_t bytes = 0;
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    bytes += WorstRankTraffic(step, from, type, mesh).bytes;
    from = step.result;
  }
  return bytes;
}

int64_t StepMemory(StepKind kind, const Layout& buffer, const Layout& from, const Layout& result,
                   const TensorType& type, const DeviceMesh& mesh) {
  if (kind == StepKind::kSlice) return 0;
  const Shape input = LargestPiece(type.shape, from, mesh);
  const Shape output = LargestPiece(type.shape, result, mesh);
  int64_t elements = output.num_elements();
  if (Communicates(kind)) {
    const bool is_one_run = CutsAreRuns(LargestPiece(type.shape, buffer, mesh), CutDims(buffer, from), true);
    const bool in_order = kind == StepKind::kPermute || kind == StepKind::kSendRegions ||
                          std::has_single_bit(ChangedAxes(from, result, mesh));
    const bool reduces = kind == StepKind::kAllReduce;
    if (!is_one_run || (!reduces && !CutsAreRuns(input, CutDims(from, result), in_order))) {
      elements += input.num_elements();
    }
    if (!reduces && !CutsAreRuns(output, CutDims(result, from), in_order)) elements += output.num_elements();
  }
  return elements * ItemSize(type.dtype);
}

int64_t PeakBytes(const Redistribution& plan, const TensorType& type, const DeviceMesh& mesh) {
  const auto piece_bytes = [&](const Layout& layout) {
    return MaxLocalElements(type.shape, layout, mesh) * ItemSize(type.dtype);
  };
  const int64_t source = piece_bytes(plan.from);
  int64_t held = 0;  // besides the caller's piece
  int64_t peak = source;
  Layout buffer = plan.from;  // what the step's input lies in: a slice is a view
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    peak = std::max(peak, source + held + StepMemory(step.kind, buffer, from, step.result, type, mesh));
    from = step.result;
    if (step.kind == StepKind::kSlice) continue;
    held = piece_bytes(step.result);
    buffer = step.result;
  }
  // A result that views a larger buffer is copied, so that the buffer goes.
  return buffer != from && held > 0 ? std::max(peak, source + held + piece_bytes(plan.to)) : peak;
}

}  // namespace weft
