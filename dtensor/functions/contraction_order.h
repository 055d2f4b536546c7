#ifndef WEFT_DTENSOR_FUNCTIONS_CONTRACTION_ORDER_H_
#define WEFT_DTENSOR_FUNCTIONS_CONTRACTION_ORDER_H_

#include <vector>

#include "dtensor/functions/einsum_terms.h"

namespace weft {

// Two factors of a product that are multiplied next. Operands have their own numbers, results the next ones
// in order.
struct ContractionStep {
  int a = 0;
  int b = 0;

  bool operator==(const ContractionStep&) const = default;
};

struct ContractionOrder {
  std::vector<ContractionStep> steps;  // one fewer than operands
  double multiply_adds = 0;

  bool operator==(const ContractionOrder&) const = default;
};

// In which order to multiply the operands of an einsum two at a time, where every label that nothing else
// needs is summed away at once. Least multiply-adds, then smallest intermediate tensors: the optimum, by
// dynamic programming over subsets, for up to 8 operands (3^8 pairs of subsets); the cheapest next product
// beyond that. Counts are those of the global tensors, so that the order, and with it the rounding, is the
// same on every layout.
//
// Errors: InvalidArgument if every order makes an intermediate tensor of more than 8 dims (beyond 8 operands:
//         if the order taken does).
ContractionOrder OrderContractions(const EinsumTerms& terms);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_CONTRACTION_ORDER_H_
