#include "mesh/redistribution/lowering.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "mesh/shard_math.h"

namespace weft {
namespace {

using Coordinate = absl::InlinedVector<int64_t, DeviceMesh::kMaxAxes>;

std::vector<int64_t> CountsOf(const std::vector<Region>& regions) {
  std::vector<int64_t> counts;
  counts.reserve(regions.size());
  for (const Region& region : regions) counts.push_back(region.shape.num_elements());
  return counts;
}

class StepLowering {
 public:
  StepLowering(const Layout& from, const RedistributionStep& step, const Shape& shape, const DeviceMesh& mesh,
               absl::Span<const int64_t> coordinate)
      : from_(from), step_(step), shape_(shape), mesh_(mesh), here_(coordinate.begin(), coordinate.end()) {}

  LoweredStep Run() {
    LoweredStep lowered;
    lowered.kind = step_.kind;
    lowered.axes = step_.axes;
    lowered.op = step_.op;
    std::sort(lowered.axes.begin(), lowered.axes.end());
    axes_ = lowered.axes;
    int64_t member = 0;  // this rank's group rank
    for (int axis : axes_) {
      member = member * mesh_.axis_size(axis) + here_[axis];
      lowered.group_size *= mesh_.axis_size(axis);
    }
    lowered.first_in_group = member == 0;
    const Region input = RegionAt(from_, here_), output = RegionAt(step_.result, here_);
    lowered.result_shape = output.shape;
    switch (step_.kind) {
      case StepKind::kSlice:
        lowered.sent = {output.From(input.offset)};
        break;
      case StepKind::kAllReduce:
      case StepKind::kToPartial:
        break;
      case StepKind::kReduceScatter:
        // All members hold the same box.
        lowered.sent.reserve(lowered.group_size);
        for (const Region& wanted : MembersUnder(step_.result)) {
          lowered.sent.push_back(wanted.From(input.offset));
        }
        break;
      case StepKind::kAllGather:
        lowered.sent = {Intersect(input, output).From(input.offset)};
        lowered.received.reserve(lowered.group_size);
        for (const Region& held : MembersUnder(from_)) {
          lowered.received.push_back(Intersect(held, output).From(output.offset));
        }
        break;
      case StepKind::kAllToAll:
        lowered.sent.reserve(lowered.group_size);
        lowered.received.reserve(lowered.group_size);
        for (const Region& wanted : MembersUnder(step_.result)) {
          lowered.sent.push_back(Intersect(input, wanted).From(input.offset));
        }
        for (const Region& held : MembersUnder(from_)) {
          lowered.received.push_back(Intersect(held, output).From(output.offset));
        }
        break;
      case StepKind::kPermute:
      case StepKind::kSendRegions:
        lowered.exchange = LowerExchange(
            PlanRegionExchange(MembersUnder(from_), MembersUnder(step_.result), static_cast<int>(member)),
            input.offset, output.offset);
        break;
    }
    lowered.sent_counts = CountsOf(lowered.sent);
    lowered.received_counts = CountsOf(lowered.received);
    lowered.sent_in_order = LieInOrder(input.shape, lowered.sent);
    lowered.received_in_order = LieInOrder(output.shape, lowered.received);
    return lowered;
  }

 private:
  Region RegionAt(const Layout& layout, absl::Span<const int64_t> coordinate) const {
    const ShardBox box = LocalBox(shape_, layout, mesh_, coordinate);
    return {box.offset, box.shape};
  }

  // The members' regions, by group rank: the row-major index along the axes.
  std::vector<Region> MembersUnder(const Layout& layout) const {
    std::vector<Region> regions;
    Coordinate coordinate = here_;
    int64_t num_members = 1;
    for (int axis : axes_) {
      coordinate[axis] = 0;
      num_members *= mesh_.axis_size(axis);
    }
    regions.reserve(num_members);
    for (bool more = true; more;) {
      regions.push_back(RegionAt(layout, coordinate));
      more = false;
      for (size_t i = axes_.size(); i-- > 0 && !more;) {
        more = ++coordinate[axes_[i]] < mesh_.axis_size(axes_[i]);
        if (!more) coordinate[axes_[i]] = 0;
      }
    }
    return regions;
  }

  const Layout& from_;
  const RedistributionStep& step_;
  const Shape& shape_;
  const DeviceMesh& mesh_;
  const Coordinate here_;
  AxisList axes_;
};

}  // namespace

LoweredExchange LowerExchange(const RegionExchange& exchange, const Shape& input_offset,
                              const Shape& output_offset) {
  LoweredExchange lowered{.sends = exchange.sends,
                          .receives = exchange.receives,
                          .kept_from = exchange.kept.From(input_offset),
                          .kept_to = exchange.kept.From(output_offset)};
  for (RegionMessage& message : lowered.sends) message.region = message.region.From(input_offset);
  for (RegionMessage& message : lowered.receives) message.region = message.region.From(output_offset);
  return lowered;
}

LoweredRedistribution Lower(Redistribution plan, const Shape& shape, const DeviceMesh& mesh,
                            absl::Span<const int64_t> coordinate) {
  LoweredRedistribution lowered;
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    lowered.steps.push_back(StepLowering(from, step, shape, mesh, coordinate).Run());
    from = step.result;
  }
  lowered.plan = std::move(plan);
  return lowered;
}

}  // namespace weft
