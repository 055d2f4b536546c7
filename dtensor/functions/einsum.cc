#include "dtensor/functions/einsum.h"

#include <algorithm>
#include <string>

#include "dtensor/functions/contraction_order.h"
#include "dtensor/functions/einsum_terms.h"
#include "dtensor/functions/elementwise.h"
#include "dtensor/functions/linear_algebra.h"
#include "dtensor/functions/reduce.h"
#include "dtensor/functions/shape.h"

namespace weft {
namespace {

using Labels = std::vector<EinsumLabel>;

bool Has(EinsumLabelSet set, EinsumLabel label) { return (set >> label & 1) != 0; }

// A factor of the product: a tensor whose dims have labels.
struct Labelled {
  DTensor value;
  Labels labels;

  EinsumLabelSet set() const { return LabelSet(labels); }
};

// Without the dims of extent 1 that repeat along a longer one of another operand.
Labelled DropRepeated(const Labelled& factor, const EinsumTerms& terms) {
  Labelled result;
  Shape shape;
  for (int dim = 0; dim < factor.value.ndim(); ++dim) {
    const EinsumLabel label = factor.labels[dim];
    if (factor.value.shape()[dim] != terms.extents[label]) continue;
    result.labels.push_back(label);
    shape.push_back(factor.value.shape()[dim]);
  }
  result.value = shape.ndim() == factor.value.ndim() ? factor.value : Reshape(factor.value, shape);
  return result;
}

// Without the labels that are not in `needed`.
Labelled SumAway(const Labelled& factor, EinsumLabelSet needed) {
  Labelled result;
  std::vector<int> dims;
  for (size_t dim = 0; dim < factor.labels.size(); ++dim) {
    if (Has(needed, factor.labels[dim])) {
      result.labels.push_back(factor.labels[dim]);
    } else {
      dims.push_back(static_cast<int>(dim));
    }
  }
  result.value = dims.empty() ? factor.value : Sum(factor.value, dims);
  return result;
}

// The factor's dims in the order of `labels`, and 1 where it lacks one, but for leading ones.
DTensor Aligned(const Labelled& factor, const Labels& labels) {
  std::vector<int> order;
  Shape shape;
  for (EinsumLabel label : labels) {
    const auto found = std::find(factor.labels.begin(), factor.labels.end(), label);
    if (found == factor.labels.end()) {
      if (!order.empty()) shape.push_back(1);
      continue;
    }
    order.push_back(static_cast<int>(found - factor.labels.begin()));
    shape.push_back(factor.value.shape()[order.back()]);
  }
  const DTensor permuted =
      std::is_sorted(order.begin(), order.end()) ? factor.value : Permute(factor.value, order);
  return shape.ndim() == permuted.ndim() ? permuted : Reshape(permuted, shape);
}

// Labels as the letters of one contraction, which has at most 16 of them.
class Letters {
 public:
  std::string Of(const Labels& labels) {
    std::string text;
    for (EinsumLabel label : labels) {
      auto found = std::find(known_.begin(), known_.end(), label);
      if (found == known_.end()) found = known_.insert(known_.end(), label);
      text.push_back(static_cast<char>('a' + (found - known_.begin())));
    }
    return text;
  }

 private:
  Labels known_;
};

// The sum of the products of two factors over the labels that `output` lacks.
Labelled Multiply(const Labelled& a, const Labelled& b, const Labels& output) {
  const EinsumLabelSet kept = LabelSet(output);
  const bool sums = ((a.set() | b.set()) & ~kept) != 0;
  const bool repeats = (a.set() & ~b.set()) == 0 || (b.set() & ~a.set()) == 0;
  if (!sums && repeats) return {Mul(Aligned(a, output), Aligned(b, output)), output};
  Letters letters;
  const std::string a_text = letters.Of(a.labels);
  const std::string b_text = letters.Of(b.labels);
  return {Contract(a.value, a_text, b.value, b_text, letters.Of(output)), output};
}

// The labels of an intermediate product as a contraction likes them: shared ones, then each factor's own.
Labels ProductLabels(const Labelled& a, const Labelled& b, EinsumLabelSet needed) {
  Labels labels;
  for (EinsumLabel label : a.labels) {
    if (Has(needed, label) && Has(b.set(), label)) labels.push_back(label);
  }
  for (const auto& [factor, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (EinsumLabel label : factor->labels) {
      if (Has(needed, label) && !Has(other->set(), label)) labels.push_back(label);
    }
  }
  return labels;
}

// What the output or a factor that is still to be multiplied, other than a and b, has.
EinsumLabelSet NeededLabels(const std::vector<Labelled>& factors, const EinsumTerms& terms, size_t a,
                            size_t b) {
  EinsumLabelSet needed = LabelSet(terms.output);
  for (size_t i = 0; i < factors.size(); ++i) {
    if (i != a && i != b) needed |= factors[i].set();
  }
  return needed;
}

}  // namespace

DTensor Einsum(absl::string_view equation, const std::vector<DTensor>& operands) {
  std::vector<Shape> shapes;
  for (const DTensor& operand : operands) shapes.push_back(operand.shape());
  EinsumTerms terms = ParseEinsum(equation, shapes);
  std::vector<Labelled> factors;
  for (size_t i = 0; i < operands.size(); ++i) {
    factors.push_back(DropRepeated({operands[i], terms.operands[i]}, terms));
    terms.operands[i] = factors.back().labels;
  }
  for (size_t i = 0; i < factors.size(); ++i) {
    factors[i] = SumAway(factors[i], NeededLabels(factors, terms, i, i));
  }
  const ContractionOrder order = OrderContractions(terms);
  for (const ContractionStep& step : order.steps) {
    const bool last = &step == &order.steps.back();
    const EinsumLabelSet needed = NeededLabels(factors, terms, step.a, step.b);
    const Labelled& a = factors[step.a];
    const Labelled& b = factors[step.b];
    Labelled product = Multiply(a, b, last ? terms.output : ProductLabels(a, b, needed));
    factors[step.a] = {};
    factors[step.b] = {};
    factors.push_back(std::move(product));
  }
  return Aligned(factors.back(), terms.output);
}

}  // namespace weft
