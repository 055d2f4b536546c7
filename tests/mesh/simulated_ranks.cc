#include "tests/mesh/simulated_ranks.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "mesh/shard_math.h"

namespace weft {
namespace {

int64_t IndexIn(const std::vector<int>& group, int rank) {
  return std::find(group.begin(), group.end(), rank) - group.begin();
}

double Combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return a + b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
  }
  return NAN;
}

// What a rank keeps of a value that becomes a term: so that the terms, reduced, give the value back.
double TermOfReplicated(ReduceOp op, double value, int64_t index) {
  switch (op) {
    case ReduceOp::kSum:
      return index == 0 ? value : 0;
    case ReduceOp::kAvg:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return value;
    case ReduceOp::kProduct:
      return index == 0 ? value : 1;
  }
  return NAN;
}

}  // namespace

SimulatedRanks::SimulatedRanks(const DeviceMesh& mesh, const Shape& shape, const Layout& layout)
    : mesh_(mesh), shape_(shape), strides_(ContiguousStrides(shape)), ranks_(mesh.num_ranks()) {
  const AxisList partial_axes = layout.PartialAxes();
  for (int rank : mesh.ranks()) {
    Elements& held = ranks_[rank];
    const std::vector<int> terms = mesh.GroupOf(rank, partial_axes);
    for (int64_t element = 0; element < shape.num_elements(); ++element) {
      held[element] =
          Term(element, layout, partial_axes, IndexIn(terms, rank), static_cast<int64_t>(terms.size()));
    }
    held = Held(std::move(held), layout, rank);
  }
}

Elements SimulatedRanks::Held(Elements elements, const Layout& layout, int rank) const {
  const std::vector<int64_t> coordinate = mesh_.CoordinateOf(rank);
  for (int dim = 0; dim < layout.ndim(); ++dim) {
    for (int axis : layout.ShardAxes(dim)) {
      elements = Chunk(elements, dim, mesh_.axis_size(axis), coordinate[axis]);
    }
  }
  return elements;
}

double SimulatedRanks::Term(int64_t element, const Layout& layout, const AxisList& axes, int64_t index,
                            int64_t count) const {
  if (axes.empty()) return Value(element);
  // A fixed noise; exact in doubles, as are the sums and products below.
  const auto noise = [&](int64_t i) { return (element * 13 + i * 29 + 5) % 19 - 9; };
  switch (layout.partial_op(axes.front())) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: {
      if (index != count - 1) return static_cast<double>(noise(index));
      double last = Value(element);
      for (int axis : axes) {
        if (layout.partial_op(axis) == ReduceOp::kAvg) last *= static_cast<double>(mesh_.axis_size(axis));
      }
      for (int64_t i = 0; i + 1 < count; ++i) last -= static_cast<double>(noise(i));
      return last;
    }
    case ReduceOp::kMin:
      return Value(element) + (index == element % count ? 0 : static_cast<double>(noise(index) + 10));
    case ReduceOp::kMax:
      return Value(element) - (index == element % count ? 0 : static_cast<double>(noise(index) + 10));
    case ReduceOp::kProduct: {
      const auto factor = [&](int64_t i) { return (noise(i) % 2 == 0 ? -1 : 1) * std::exp2(noise(i) % 3); };
      if (index != count - 1) return factor(index);
      double last = Value(element);
      for (int64_t i = 0; i + 1 < count; ++i) last /= factor(i);
      return last;
    }
  }
  return NAN;
}

Elements SimulatedRanks::Chunk(const Elements& elements, int dim, int64_t count, int64_t index) const {
  const auto coordinate = [&](int64_t element) { return element / strides_[dim] % shape_[dim]; };
  std::set<int64_t> present;
  for (const auto& [element, value] : elements) present.insert(coordinate(element));
  int64_t chunk_size = 1;
  while (chunk_size * count < static_cast<int64_t>(present.size())) ++chunk_size;
  std::set<int64_t> kept;
  int64_t place = 0;
  for (int64_t i : present) {
    if (place++ / chunk_size == index) kept.insert(i);
  }
  Elements result;
  for (const auto& [element, value] : elements) {
    if (kept.count(coordinate(element))) result[element] = value;
  }
  return result;
}

Elements SimulatedRanks::Union(const std::vector<int>& group) const {
  Elements all;
  for (int member : group) all.insert(ranks_[member].begin(), ranks_[member].end());
  return all;
}

Elements SimulatedRanks::Reduce(const std::vector<int>& group, ReduceOp op) const {
  Elements result = ranks_[group[0]];
  for (size_t i = 1; i < group.size(); ++i) {
    for (const auto& [element, term] : ranks_[group[i]]) {
      result.at(element) = Combine(op, result.at(element), term);
    }
  }
  if (op == ReduceOp::kAvg) {
    for (auto& [element, value] : result) value /= static_cast<double>(group.size());
  }
  return result;
}

int64_t SimulatedRanks::Run(const RedistributionStep& step) {
  std::vector<Elements> next(ranks_.size());
  Elements whole;
  for (int64_t element = 0; element < shape_.num_elements(); ++element) whole[element] = 0;
  int64_t lacked = 0;
  for (int rank : mesh_.ranks()) {
    const std::vector<int> group = mesh_.GroupOf(rank, step.axes);
    const int64_t count = static_cast<int64_t>(group.size());
    const int64_t index = IndexIn(group, rank);
    const Elements& now = ranks_[rank];
    Elements& then = next[rank];
    switch (step.kind) {
      case StepKind::kAllGather:
      case StepKind::kAllToAll:
      case StepKind::kPermute:
      case StepKind::kSendRegions: {
        // What no member of the group holds stays missing, which Check notices.
        const Elements available = Union(group);
        for (const auto& [element, nothing] : Held(whole, step.result, rank)) {
          const auto source = available.find(element);
          if (source == available.end()) continue;
          then.insert(*source);
          lacked += !now.count(element);
        }
        break;
      }
      case StepKind::kReduceScatter: {
        const Elements sums = Reduce(group, step.op);
        for (const auto& [element, nothing] : Held(whole, step.result, rank)) {
          const auto sum = sums.find(element);
          if (sum != sums.end()) then.insert(*sum);
        }
        lacked += static_cast<int64_t>(then.size()) * (count - 1);  // the others' terms
        break;
      }
      case StepKind::kAllReduce:
        then = Reduce(group, step.op);
        // Of each element one member lacks the others' terms, and the others its result.
        if (index == 0) lacked += static_cast<int64_t>(then.size()) * (count - 1 + count - 1);
        break;
      case StepKind::kSlice:
        for (const auto& [element, nothing] : Held(whole, step.result, rank)) {
          if (now.count(element)) then[element] = now.at(element);
        }
        break;
      case StepKind::kToPartial:
        for (const auto& [element, value] : now) then[element] = TermOfReplicated(step.op, value, index);
        break;
    }
  }
  ranks_ = std::move(next);
  return lacked;
}

std::string SimulatedRanks::Check(const Layout& layout) const {
  const AxisList partial_axes = layout.PartialAxes();
  for (int rank : mesh_.ranks()) {
    const ShardBox box = LocalBox(shape_, layout, mesh_, mesh_.CoordinateOf(rank));
    if (static_cast<int64_t>(ranks_[rank].size()) != box.shape.num_elements()) {
      return absl::StrCat("rank ", rank, " holds ", ranks_[rank].size(), " elements, not ",
                          box.shape.ToString());
    }
    // Averages are sums, divided at the end.
    Elements values = ranks_[rank];
    if (!partial_axes.empty()) {
      const ReduceOp op = layout.partial_op(partial_axes[0]);
      values = Reduce(mesh_.GroupOf(rank, partial_axes), op == ReduceOp::kAvg ? ReduceOp::kSum : op);
    }
    double divisor = 1;
    for (int axis : partial_axes) {
      if (layout.partial_op(axis) == ReduceOp::kAvg) divisor *= static_cast<double>(mesh_.axis_size(axis));
    }
    for (const auto& [element, value] : values) {
      for (int dim = 0; dim < shape_.ndim(); ++dim) {
        const int64_t i = element / strides_[dim] % shape_[dim] - box.offset[dim];
        if (i < 0 || i >= box.shape[dim]) return absl::StrCat("rank ", rank, " holds element ", element);
      }
      if (!(std::abs(value / divisor - Value(element)) < 1e-9)) {
        return absl::StrCat("rank ", rank, ", element ", element, ": ", value / divisor, ", not ",
                            Value(element));
      }
    }
  }
  return "";
}

}  // namespace weft
