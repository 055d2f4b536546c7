#include "mesh/redistribution/bytes.h"

#include <algorithm>
#include <bit>

#include "mesh/redistribution/kept.h"
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

}  // namespace

int64_t StepBytes(const RedistributionStep& step, const Layout& from, const Shape& shape, DType dtype,
                  const DeviceMesh& mesh) {
  CheckOnMesh(from, shape, mesh);
  const int64_t group_size = NumRanksAlong(MaskOf(step.axes), mesh);
  // Summed over all ranks, the pieces of a layout hold every element as often as it has copies.
  const int64_t held = shape.num_elements() * NumCopies(from, mesh);
  switch (step.kind) {
    case StepKind::kReduceScatter:
      return held / group_size * (group_size - 1) * ItemSize(dtype);
    case StepKind::kAllReduce:
      return 2 * (held / group_size) * (group_size - 1) * ItemSize(dtype);
    case StepKind::kAllGather:
    case StepKind::kAllToAll:
    case StepKind::kPermute:
    case StepKind::kSendRegions:
      return (shape.num_elements() * NumCopies(step.result, mesh) - NumKept(from, step.result, shape, mesh)) *
             ItemSize(dtype);
    case StepKind::kSlice:
    case StepKind::kToPartial:
      break;
  }
  return 0;
}

int64_t TotalBytes(const Redistribution& plan, const Shape& shape, DType dtype, const DeviceMesh& mesh) {
  int64_t bytes = 0;
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    bytes += StepBytes(step, from, shape, dtype, mesh);
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

StepTraffic WorstRankTraffic(const RedistributionStep& step, const Layout& from, const Shape& shape,
                             DType dtype, const DeviceMesh& mesh) {
  const AxisMask axes = MaskOf(step.axes);
  if (!Communicates(step.kind)) return {};
  if (step.kind == StepKind::kReduceScatter) {
    return ReduceScatterTraffic(axes, MaxLocalElements(shape, step.result, mesh), dtype, mesh);
  }
  if (step.kind == StepKind::kAllReduce)
    return AllReduceTraffic(axes, MaxLocalElements(shape, from, mesh), dtype, mesh);
  return MoveTraffic(DescribeMove(from, step.result, shape, mesh), dtype, mesh);
}

int64_t WorstRankBytes(const Redistribution& plan, const Shape& shape, DType dtype, const DeviceMesh& mesh) {
  int64_t bytes = 0;
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    bytes += WorstRankTraffic(step, from, shape, dtype, mesh).bytes;
    from = step.result;
  }
  return bytes;
}

int64_t StepMemory(StepKind kind, const Layout& buffer, const Layout& from, const Layout& result,
                   const Shape& shape, DType dtype, const DeviceMesh& mesh) {
  if (kind == StepKind::kSlice) return 0;
  const Shape input = LargestPiece(shape, from, mesh);
  const Shape output = LargestPiece(shape, result, mesh);
  int64_t elements = output.num_elements();
  if (Communicates(kind)) {
    const bool is_one_run = CutsAreRuns(LargestPiece(shape, buffer, mesh), CutDims(buffer, from), true);
    const bool in_order = kind == StepKind::kPermute || kind == StepKind::kSendRegions ||
                          std::has_single_bit(ChangedAxes(from, result, mesh));
    const bool reduces = kind == StepKind::kAllReduce;
    if (!is_one_run || (!reduces && !CutsAreRuns(input, CutDims(from, result), in_order))) {
      elements += input.num_elements();
    }
    if (!reduces && !CutsAreRuns(output, CutDims(result, from), in_order)) elements += output.num_elements();
  }
  return elements * ItemSize(dtype);
}

int64_t PeakBytes(const Redistribution& plan, const Shape& shape, DType dtype, const DeviceMesh& mesh) {
  const auto piece_bytes = [&](const Layout& layout) {
    return MaxLocalElements(shape, layout, mesh) * ItemSize(dtype);
  };
  const int64_t source = piece_bytes(plan.from);
  int64_t held = 0;  // besides the caller's piece
  int64_t peak = source;
  Layout buffer = plan.from;  // what the step's input lies in: a slice is a view
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    peak =
        std::max(peak, source + held + StepMemory(step.kind, buffer, from, step.result, shape, dtype, mesh));
    from = step.result;
    if (step.kind == StepKind::kSlice) continue;
    held = piece_bytes(step.result);
    buffer = step.result;
  }
  // A result that views a larger buffer is copied, so that the buffer goes.
  return buffer != from && held > 0 ? std::max(peak, source + held + piece_bytes(plan.to)) : peak;
}

}  // namespace weft
