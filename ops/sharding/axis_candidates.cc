#include "ops/sharding/axis_candidates.h"

#include <optional>
#include <utility>

#include "absl/algorithm/container.h"

namespace weft {
namespace {

// Whether one of the operands that `output` is made of has `factor`.
bool IsMadeOfFactor(const ShardingRule& rule, int output, int factor) {
  for (size_t i = 0; i < rule.operands.size(); ++i) {
    if (DimOfFactor(rule.operands[i], factor) >= 0 && rule.IsMadeOf(output, static_cast<int>(i))) return true;
  }
  return false;
}

bool IsSplitBy(const Layout& layout, const std::vector<int>& dims, int axis, int factor) {
  return layout.IsShard(axis) && dims[layout.shard_dim(axis)] == factor;
}

bool IsLinearPartial(const Layout& layout, int axis) {
  return layout.IsPartial(axis) &&
         (layout.partial_op(axis) == ReduceOp::kSum || layout.partial_op(axis) == ReduceOp::kAvg);
}

// Whether `operand` is a term of a sum beside a product that `factor` is reduced in (a bias): every piece of
// the split would add it once more, so it must itself be in pieces.
bool IsAdditive(const CallRule& call, int operand, int factor) {
  if (DimOfFactor(call.rule.operands[operand], factor) >= 0) return false;
  return absl::c_any_of(call.linear, [&](const std::vector<int>& group) {
    return absl::c_linear_search(group, operand) && absl::c_any_of(group, [&](int other) {
             return DimOfFactor(call.rule.operands[other], factor) >= 0;
           });
  });
}

// What splitting a factor over an axis means, read off the rule "b d, d n -> b n":
//
//   factor   operands             output
//   b        Shard(0), Replicate  Shard(0)
//   n        Replicate, Shard(1)  Shard(1)
//   d        Shard(1), Shard(0)   Partial: the output lacks it, and is made of operands that have it
//
// A term of the same sum that lacks the factor (a bias beside a product over d) would be added by every rank:
// it must be Partial too. None if one output needs it so and another needs it whole.
std::optional<AxisCandidate> SplitFactor(const CallRule& call, int factor) {
  const ShardingRule& rule = call.rule;
  AxisCandidate candidate = {.factor = factor};
  for (size_t i = 0; i < rule.outputs.size(); ++i) {
    const int dim = DimOfFactor(rule.outputs[i], factor);
    if (dim >= 0) {
      candidate.outputs.push_back(Shard(dim));
    } else if (IsMadeOfFactor(rule, static_cast<int>(i), factor)) {
      candidate.outputs.push_back(Partial(rule.reductions[i]));
    } else {
      candidate.outputs.push_back(Replicate());
    }
  }
  for (size_t i = 0; i < rule.operands.size(); ++i) {
    const int operand = static_cast<int>(i);
    const int dim = DimOfFactor(rule.operands[i], factor);
    if (dim >= 0) {
      candidate.operands.push_back(Shard(dim));
      continue;
    }
    // Whether a term of a sum is needed in pieces, by one output, and whole, by another.
    bool in_pieces = false;
    bool whole = false;
    for (size_t output = 0; output < rule.outputs.size(); ++output) {
      if (!rule.IsMadeOf(static_cast<int>(output), operand)) continue;
      (std::holds_alternative<Partial>(candidate.outputs[output]) ? in_pieces : whole) = true;
    }
    if (!in_pieces || !IsAdditive(call, operand, factor)) {
      candidate.operands.push_back(Replicate());
    } else if (whole) {
      return std::nullopt;
    } else {
      candidate.operands.push_back(Partial());
    }
  }
  return candidate;
}

// The group as Partial, if one of it is on `axis`; none if its kinds differ. Other operands that are Partial
// there are reduced first.
std::optional<AxisCandidate> PassPartial(const CallRule& call, absl::Span<const Layout> operands,
                                         const std::vector<int>& group, int axis) {
  std::optional<ReduceOp> kind;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].IsPartial(axis) || !absl::c_linear_search(group, static_cast<int>(i))) continue;
    if (!IsLinearPartial(operands[i], axis)) return std::nullopt;
    // An average that is cut to whole numbers is linear in nothing, unlike a sum, which wraps.
    const bool is_cut = absl::c_linear_search(call.not_floating, static_cast<int>(i));
    if (is_cut && operands[i].partial_op(axis) == ReduceOp::kAvg) return std::nullopt;
    // The terms of a sum and those of an average do not add up to either.
    if (kind.has_value() && *kind != operands[i].partial_op(axis)) return std::nullopt;
    kind = operands[i].partial_op(axis);
  }
  if (!kind.has_value()) return std::nullopt;
  AxisCandidate candidate;
  candidate.operands.assign(operands.size(), Replicate());
  for (int operand : group) candidate.operands[operand] = Partial(*kind);
  for (size_t output = 0; output < call.rule.outputs.size(); ++output) {
    const bool passes = absl::c_any_of(
        group, [&](int operand) { return call.rule.IsMadeOf(static_cast<int>(output), operand); });
    candidate.outputs.push_back(passes ? Placement(Partial(*kind)) : Placement(Replicate()));
  }
  return candidate;
}

// Whether in-place operands stay where they are and their outputs with them.
bool KeepsInPlace(const CallRule& call, absl::Span<const Layout> operands, const AxisCandidate& candidate,
                  int axis) {
  for (size_t i = 0; i < call.in_place.size(); ++i) {
    const int operand = call.in_place[i];
    if (candidate.operands[operand] != operands[operand].placement(axis)) return false;
    if (candidate.outputs[i] != candidate.operands[operand]) return false;
  }
  return true;
}

}  // namespace

std::vector<int> NotFloating(absl::Span<const TensorType> operands) {
  std::vector<int> numbers;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!IsFloating(operands[i].dtype)) numbers.push_back(static_cast<int>(i));
  }
  return numbers;
}

int DimOfFactor(const std::vector<int>& dims, int factor) {
  const auto found = absl::c_find(dims, factor);
  return found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
}

std::vector<AxisCandidate> AxisCandidates(const CallRule& call, absl::Span<const Layout> operands,
                                          const Layout* like, int axis,
                                          std::vector<RefusedCandidate>* refused) {
  std::vector<AxisCandidate> candidates;
  const auto refuse = [&](int factor, int group, const char* why) {
    if (refused != nullptr) refused->push_back({axis, factor, group, why});
  };
  const auto add = [&](std::optional<AxisCandidate> candidate, int factor, int group, const char* why) {
    if (!candidate.has_value()) return refuse(factor, group, why);
    if (!KeepsInPlace(call, operands, *candidate, axis)) {
      return refuse(factor, group, "an operand that is updated in place would move");
    }
    candidate->group = group;
    candidates.push_back(*std::move(candidate));
  };
  candidates.reserve(call.rule.factors.size() + call.linear.size() + 1);
  for (size_t f = 0; f < call.rule.factors.size(); ++f) {
    const int factor = static_cast<int>(f);
    if (call.rule.factors[f].whole) {
      refuse(factor, -1, "it must stay whole");
      continue;
    }
    // Splits are followed, not invented: where tensors lie is the plan's to say.
    bool present = like != nullptr && IsSplitBy(*like, call.rule.outputs[0], axis, factor);
    for (size_t i = 0; i < operands.size(); ++i) {
      present = present || IsSplitBy(operands[i], call.rule.operands[i], axis, factor);
    }
    if (present) {
      add(SplitFactor(call, factor), factor, -1, "a term beside it is needed in pieces and whole");
    } else {
      refuse(factor, -1, "no operand is split by it there");
    }
  }
  const bool any_partial =
      absl::c_any_of(operands, [&](const Layout& layout) { return layout.IsPartial(axis); });
  for (size_t g = 0; g < call.linear.size(); ++g) {
    add(PassPartial(call, operands, call.linear[g], axis), -1, static_cast<int>(g),
        any_partial ? "no operand of it is Partial there, or not of one kind of sum that is linear"
                    : "no operand is Partial there");
  }
  // Replicate throughout is always right, and last: it wins no tie.
  add(AxisCandidate{-1, Placements(operands.size(), Replicate()),
                    Placements(call.rule.outputs.size(), Replicate())},
      -1, -1, "");
  return candidates;
}

}  // namespace weft
