#include "mesh/redistribution/rearrangement.h"

#include <algorithm>
#include <cstddef>

#include "absl/container/inlined_vector.h"
#include "mesh/shard_math.h"

namespace weft {
namespace {

struct Range {
  int64_t offset = 0;
  int64_t size = 0;
};

// What a member holds of the dim: a range of every source, and its part of the result.
struct Place {
  std::vector<Range> sources;
  Range result;
};

class Lowering {
 public:
  Lowering(const Rearrangement& rearrangement, const DeviceMesh& mesh, absl::Span<const int64_t> coordinate)
      : of_(rearrangement), mesh_(mesh), coordinate_(coordinate.begin(), coordinate.end()) {
    result_.axes = of_.layout.ShardAxes(of_.dim);
    std::sort(result_.axes.begin(), result_.axes.end());
    for (int axis : result_.axes) {
      size_ *= static_cast<int>(mesh.axis_size(axis));
      rank_ = rank_ * static_cast<int>(mesh.axis_size(axis)) + static_cast<int>(coordinate_[axis]);
    }
    for (int member = 0; member < size_; ++member) places_.push_back(PlaceOf(member));
  }

  LoweredRearrangement Run() && {
    const TensorType whole = of_.ResultType();
    const ShardBox box = LocalBox(whole.shape, of_.layout, mesh_, coordinate_);
    result_.result_shape = box.shape;
    row_ = 1;  // elements of this rank at one place of the dim
    for (int dim = 0; dim < whole.shape.ndim(); ++dim) row_ *= dim == of_.dim ? 1 : box.shape[dim];
    int64_t filled = 0;
    for (int member = 0; member < size_; ++member) {
      result_.send_counts.push_back(AddParts(rank_, member, member == rank_ ? &result_.kept : &result_.sent));
      if (member != rank_) {
        result_.receive_counts.push_back(AddParts(member, rank_, &result_.received));
      } else {
        result_.receive_counts.push_back(0);
        result_.send_counts.back() = 0;
      }
    }
    for (const auto* parts : {&result_.kept, &result_.received}) {
      for (const LoweredRearrangement::Part& part : *parts) filled += part.length;
    }
    result_.fills = filled < places_[rank_].result.size;
    CountBytes(whole);
    return std::move(result_);
  }

 private:
  Place PlaceOf(int member) const {
    absl::InlinedVector<int64_t, DeviceMesh::kMaxAxes> at(coordinate_.begin(), coordinate_.end());
    int64_t rest = member;
    for (size_t i = result_.axes.size(); i-- > 0;) {  // row-major along the axes
      at[result_.axes[i]] = rest % mesh_.axis_size(result_.axes[i]);
      rest /= mesh_.axis_size(result_.axes[i]);
    }
    const auto range_of = [&](const Shape& shape) {
      const ShardBox box = LocalBox(shape, of_.layout, mesh_, at);
      return Range{box.offset[of_.dim], box.shape[of_.dim]};
    };
    Place place;
    for (const TensorType& source : of_.sources) place.sources.push_back(range_of(source.shape));
    place.result = range_of(of_.ResultType().shape);
    return place;
  }

  // The part of `run`, where it lies in the result, that a member gets.
  Range Wanted(const DimRun& run, int member) const {
    const Range& wanted = places_[member].result;
    const int64_t begin = std::max(run.to, wanted.offset);
    const int64_t end = std::min(run.to + run.length, wanted.offset + wanted.size);
    return {begin, std::max<int64_t>(end - begin, 0)};
  }

  // What of it, it gets from another member or itself.
  Range Overlap(const DimRun& run, int from, int to) const {
    const Range& held = places_[from].sources[run.source];
    const Range wanted = Wanted(run, to);
    const int64_t shift = run.to - run.from;
    const int64_t begin = std::max(held.offset + shift, wanted.offset);
    const int64_t end = std::min(held.offset + held.size + shift, wanted.offset + wanted.size);
    return {begin, std::max<int64_t>(end - begin, 0)};
  }

  // What goes from one member to another, in the order of the runs. Returns its elements.
  int64_t AddParts(int from, int to, std::vector<LoweredRearrangement::Part>* parts) const {
    int64_t length = 0;
    for (const DimRun& run : of_.runs) {
      const Range part = Overlap(run, from, to);
      if (part.size == 0) continue;
      parts->push_back({.source = run.source,
                        .from = part.offset - run.to + run.from - places_[from].sources[run.source].offset,
                        .to = part.offset - places_[to].result.offset,
                        .length = part.size});
      length += part.size;
    }
    return length * row_;
  }

  // All groups exchange the same ranges: together they hold each element of the other dims once, and once more
  // for each index along the axes that split no dim. Each element of a run has one holder and one receiver, so all
  // of it moves but what a member keeps, and nothing here goes through pairs of members.
  void CountBytes(const TensorType& whole) {
    int64_t rows = ItemSize(whole.dtype);
    for (int dim = 0; dim < whole.shape.ndim(); ++dim) rows *= dim == of_.dim ? 1 : whole.shape[dim];
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (!of_.layout.IsShard(axis)) rows *= mesh_.axis_size(axis);
    }
    result_.num_bytes.assign(of_.sources.size(), 0);
    for (const DimRun& run : of_.runs) result_.num_bytes[run.source] += run.length * rows;
    int64_t most = 0;
    for (int member = 0; member < size_; ++member) {
      int64_t arrives = 0;
      for (const DimRun& run : of_.runs) {
        const int64_t kept = Overlap(run, member, member).size;
        result_.num_bytes[run.source] -= kept * rows;
        arrives += Wanted(run, member).size - kept;
      }
      most = std::max(most, arrives);
    }
    AxisMask axes = 0;
    for (int axis : result_.axes) axes |= AxisMask{1} << axis;
    result_.worst = {
        .bytes = most * row_ * ItemSize(whole.dtype), .rounds = most > 0 ? size_ - 1 : 0, .axes = axes};
  }

  const Rearrangement& of_;
  const DeviceMesh& mesh_;
  const absl::InlinedVector<int64_t, DeviceMesh::kMaxAxes> coordinate_;
  LoweredRearrangement result_;
  int size_ = 1;
  int rank_ = 0;
  int64_t row_ = 1;
  std::vector<Place> places_;
};

}  // namespace

TensorType Rearrangement::ResultType() const {
  TensorType type = sources[0];
  type.shape[dim] = extent;
  return type;
}

LoweredRearrangement Lower(const Rearrangement& rearrangement, const DeviceMesh& mesh,
                           absl::Span<const int64_t> coordinate) {
  return Lowering(rearrangement, mesh, coordinate).Run();
}

}  // namespace weft
