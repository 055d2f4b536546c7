#include "dtensor/functions/contraction_order.h"

#include <bit>
#include <limits>

#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr int kMaxOptimal = 8;
constexpr char kTooManyDims[] =
    "Einsum: an intermediate product would have more than 8 dims; contract some of the operands first";

// Lexicographic: multiply-adds, then elements of the results.
struct Cost {
  double multiply_adds = 0;
  double elements = 0;

  auto operator<=>(const Cost&) const = default;
  Cost operator+(const Cost& other) const {
    return {multiply_adds + other.multiply_adds, elements + other.elements};
  }
};

constexpr Cost kInfinite = {std::numeric_limits<double>::infinity(), 0};

double NumElements(const EinsumTerms& terms, EinsumLabelSet labels) {
  double count = 1;
  for (; labels != 0; labels &= labels - 1) {
    count *= static_cast<double>(terms.extents[std::countr_zero(labels)]);
  }
  return count;
}

bool IsTensor(EinsumLabelSet labels) { return std::popcount(labels) <= Shape::kMaxDims; }

// Labels of the operands and of the output.
struct Labels {
  explicit Labels(const EinsumTerms& terms) : output(LabelSet(terms.output)) {
    for (const std::vector<EinsumLabel>& operand : terms.operands) operands.push_back(LabelSet(operand));
  }

  std::vector<EinsumLabelSet> operands;
  EinsumLabelSet output;
};

class Optimum {
 public:
  explicit Optimum(const EinsumTerms& terms) : terms_(terms), labels_(terms) {
    const uint32_t all = (1u << labels_.operands.size()) - 1;
    best_.resize(all + 1);
    for (uint32_t subset = 1; subset <= all; ++subset) Solve(subset, all);
    WEFT_REQUIRE(best_[all].cost < kInfinite, kTooManyDims);
    order_.multiply_adds = best_[all].cost.multiply_adds;
    Collect(all);
  }

  const ContractionOrder& order() const { return order_; }

 private:
  struct Best {
    Cost cost = kInfinite;
    uint32_t left = 0;
    EinsumLabelSet labels = 0;  // of the product
  };

  EinsumLabelSet UnionOf(uint32_t subset) const {
    EinsumLabelSet set = 0;
    for (; subset != 0; subset &= subset - 1) set |= labels_.operands[std::countr_zero(subset)];
    return set;
  }

  void Solve(uint32_t subset, uint32_t all) {
    Best& best = best_[subset];
    best.labels = UnionOf(subset) & (labels_.output | UnionOf(all & ~subset));
    if (std::has_single_bit(subset)) {
      best.cost = {};
      return;
    }
    if (!IsTensor(best.labels)) return;
    const double elements = NumElements(terms_, best.labels);
    // Every split once: the left part has the lowest operand.
    const uint32_t lowest = subset & -subset;
    for (uint32_t left = (subset - 1) & subset; left != 0; left = (left - 1) & subset) {
      if ((left & lowest) == 0) continue;
      const Best& a = best_[left];
      const Best& b = best_[subset & ~left];
      const Cost cost = a.cost + b.cost + Cost{NumElements(terms_, a.labels | b.labels), elements};
      if (cost < best.cost) {
        best.cost = cost;
        best.left = left;
      }
    }
  }

  int Collect(uint32_t subset) {
    if (std::has_single_bit(subset)) return std::countr_zero(subset);
    const int a = Collect(best_[subset].left);
    const int b = Collect(subset & ~best_[subset].left);
    order_.steps.push_back({a, b});
    return static_cast<int>(labels_.operands.size() + order_.steps.size()) - 1;
  }

  const EinsumTerms& terms_;
  Labels labels_;
  std::vector<Best> best_;
  ContractionOrder order_;
};

class Greedy {
 public:
  explicit Greedy(const EinsumTerms& terms) : terms_(terms), output_(LabelSet(terms.output)) {
    for (const std::vector<EinsumLabel>& operand : terms.operands) {
      live_.push_back({static_cast<int>(live_.size()), LabelSet(operand)});
    }
    // Only one operand has a label that is dropped here, so the order of dropping does not matter.
    for (size_t i = 0; i < live_.size(); ++i) live_[i].labels = Needed(live_[i].labels, i, i);
    for (int next = static_cast<int>(live_.size()); live_.size() > 1; ++next) Step(next);
  }

  const ContractionOrder& order() const { return order_; }

 private:
  // What is left to multiply.
  struct Live {
    int number = 0;
    EinsumLabelSet labels = 0;
  };

  // Of `set`, what the output or a factor other than i and j has.
  EinsumLabelSet Needed(EinsumLabelSet set, size_t i, size_t j) const {
    EinsumLabelSet others = output_;
    for (size_t k = 0; k < live_.size(); ++k) {
      if (k != i && k != j) others |= live_[k].labels;
    }
    return set & others;
  }

  void Step(int next) {
    Cost best = kInfinite;
    size_t best_i = 0;
    size_t best_j = 0;
    for (size_t i = 0; i < live_.size(); ++i) {
      for (size_t j = i + 1; j < live_.size(); ++j) {
        const EinsumLabelSet both = live_[i].labels | live_[j].labels;
        const EinsumLabelSet result = Needed(both, i, j);
        if (!IsTensor(result)) continue;
        const Cost cost = {NumElements(terms_, both), NumElements(terms_, result)};
        if (cost < best) {
          best = cost;
          best_i = i;
          best_j = j;
        }
      }
    }
    WEFT_REQUIRE(best < kInfinite, kTooManyDims);
    const EinsumLabelSet result = Needed(live_[best_i].labels | live_[best_j].labels, best_i, best_j);
    order_.steps.push_back({live_[best_i].number, live_[best_j].number});
    order_.multiply_adds += best.multiply_adds;
    live_.erase(live_.begin() + static_cast<int64_t>(best_j));
    live_[best_i] = {next, result};
  }

  const EinsumTerms& terms_;
  EinsumLabelSet output_;
  std::vector<Live> live_;
  ContractionOrder order_;
};

}  // namespace

ContractionOrder OrderContractions(const EinsumTerms& terms) {
  if (terms.operands.size() <= kMaxOptimal) return Optimum(terms).order();
  return Greedy(terms).order();
}

}  // namespace weft
