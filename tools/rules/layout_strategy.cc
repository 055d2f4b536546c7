#include "tools/rules/layout_strategy.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

template <class T>
void AddNew(std::vector<T>& list, T value) {
  if (!absl::c_linear_search(list, value)) list.push_back(std::move(value));
}

std::vector<Layout> OnOneAxis(const Placements& placements, absl::Span<const TensorType> types) {
  std::vector<Layout> layouts;
  for (size_t i = 0; i < types.size(); ++i)
    layouts.push_back(Layout(types[i].ndim(), 1).With(0, placements[i]));
  return layouts;
}

std::vector<Layout> Replicated(absl::Span<const TensorType> types) {
  std::vector<Layout> layouts;
  for (const TensorType& type : types) layouts.push_back(Layout(type.ndim(), 1));
  return layouts;
}

// Layouts of output 0 that a caller may wish for: none first.
std::vector<std::optional<Layout>> Wishes(const OpCase& c) {
  std::vector<std::optional<Layout>> wishes = {std::nullopt};
  for (int dim = 0; dim < c.output_types[0].ndim(); ++dim) {
    wishes.push_back(Layout(c.output_types[0].ndim(), 1).WithShard(0, dim));
  }
  return wishes;
}

void CollectCandidates(const OpCase& c, const std::vector<Layout>& operands,
                       std::vector<LayoutStrategy>& strategies) {
  for (const std::optional<Layout>& wish : Wishes(c)) {
    for (const AxisCandidate& candidate :
         AxisCandidates(c.call, operands, wish.has_value() ? &*wish : nullptr, /*axis=*/0)) {
      AddNew(strategies, LayoutStrategy{OnOneAxis(candidate.operands, c.types),
                                        OnOneAxis(candidate.outputs, c.output_types)});
    }
  }
}

// One strategy an axis, where axes nest in the order given; none if no layout holds it.
std::optional<LayoutStrategy> Combine(const OpCase& c, const std::vector<const LayoutStrategy*>& picks,
                                      const std::vector<int>& order) {
  const int num_axes = static_cast<int>(picks.size());
  const auto combine = [&](const std::vector<Layout> LayoutStrategy::*values, size_t index, int ndim) {
    Layout layout(ndim, num_axes);
    for (int axis : order) layout = layout.With(axis, (picks[axis]->*values)[index].placement(0));
    return layout;
  };
  LayoutStrategy strategy;
  try {
    for (size_t i = 0; i < c.types.size(); ++i)
      strategy.operands.push_back(combine(&LayoutStrategy::operands, i, c.types[i].ndim()));
    for (size_t i = 0; i < c.output_types.size(); ++i)
      strategy.outputs.push_back(combine(&LayoutStrategy::outputs, i, c.output_types[i].ndim()));
  } catch (const Error&) {
    return std::nullopt;  // kinds of Partial that cannot mix
  }
  for (size_t i = 0; i < c.call.in_place.size(); ++i) {
    if (strategy.outputs[i] != strategy.operands[c.call.in_place[i]]) return std::nullopt;
  }
  return strategy;
}

}  // namespace

std::string LayoutStrategy::ToString(const DeviceMesh& mesh) const {
  std::string text;
  for (const Layout& layout : operands)
    absl::StrAppend(&text, text.empty() ? "" : ", ", layout.ToString(mesh));
  absl::StrAppend(&text, text.empty() ? "->" : " ->");
  for (size_t i = 0; i < outputs.size(); ++i)
    absl::StrAppend(&text, i > 0 ? ", " : " ", outputs[i].ToString(mesh));
  return text;
}

std::vector<LayoutStrategy> OfferedOnAxis(const OpCase& c) {
  std::vector<LayoutStrategy> strategies;
  CollectCandidates(c, Replicated(c.types), strategies);
  for (size_t factor = 0; factor < c.call.rule.factors.size(); ++factor) {
    std::vector<Layout> operands = Replicated(c.types);
    for (size_t i = 0; i < operands.size(); ++i) {
      const int dim = DimOfFactor(c.call.rule.operands[i], static_cast<int>(factor));
      if (dim >= 0) operands[i] = operands[i].WithShard(0, dim);
    }
    CollectCandidates(c, operands, strategies);
  }
  for (const std::vector<int>& group : c.call.linear) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      std::vector<Layout> operands = Replicated(c.types);
      for (int operand : group) operands[operand] = operands[operand].WithPartial(0, op);
      CollectCandidates(c, operands, strategies);
    }
  }
  return strategies;
}

std::vector<std::vector<Layout>> OfferedOutputs(const OpCase& c, const std::vector<Layout>& operands) {
  std::vector<LayoutStrategy> strategies;
  CollectCandidates(c, operands, strategies);
  std::vector<std::vector<Layout>> outputs;
  for (LayoutStrategy& strategy : strategies) {
    if (strategy.operands == operands) outputs.push_back(std::move(strategy.outputs));
  }
  return outputs;
}

Sampled<LayoutStrategy> Compositions(const OpCase& c, const DeviceMesh& mesh, int64_t limit,
                                     std::mt19937_64& random) {
  const std::vector<LayoutStrategy> offered = OfferedOnAxis(c);
  if (offered.empty()) return {};
  std::vector<int> order(mesh.num_axes());
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<int>> orders;
  do {
    orders.push_back(order);
  } while (std::next_permutation(order.begin(), order.end()));

  int64_t count = static_cast<int64_t>(orders.size());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) count *= static_cast<int64_t>(offered.size());
  const auto at = [&](int64_t number) {
    const std::vector<int>& nesting = orders[number % orders.size()];
    number /= static_cast<int64_t>(orders.size());
    std::vector<const LayoutStrategy*> picks;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      picks.push_back(&offered[number % offered.size()]);
      number /= static_cast<int64_t>(offered.size());
    }
    return Combine(c, picks, nesting);
  };
  Sampled<LayoutStrategy> result = {.total = count};
  const bool walk = count <= 4 * limit;
  for (int64_t i = 0; i < (walk ? count : 2 * limit); ++i) {
    std::optional<LayoutStrategy> strategy = at(walk ? i : static_cast<int64_t>(random() % count));
    if (strategy.has_value()) AddNew(result.taken, *std::move(strategy));
  }
  if (walk) result.total = static_cast<int64_t>(result.taken.size());
  absl::c_shuffle(result.taken, random);
  if (static_cast<int64_t>(result.taken.size()) > limit) result.taken.resize(limit);
  return result;
}

}  // namespace weft
