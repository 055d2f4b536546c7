// Matrices made orthogonal, by products alone.

#ifndef WEFT_DTENSOR_OPTIM_NEWTON_SCHULZ_H_
#define WEFT_DTENSOR_OPTIM_NEWTON_SCHULZ_H_

#include "absl/strings/string_view.h"
#include "dtensor/dtensor.h"

namespace weft {

// x <- a x + (b g + c g g) x with g = x x^T, `steps` times. The defaults raise small singular values fast
// and do not settle at 1: those of the result lie between about 0.7 and 1.2.
struct NewtonSchulzOptions {
  int steps = 5;
  double a = 3.4445;
  double b = -4.7750;
  double c = 2.0315;
  double eps = 1e-7;  // the least norm that x is divided by at first

  bool operator==(const NewtonSchulzOptions&) const = default;
};

// About u v^T of each matrix u s v^T that x holds. `roles` says of each dim whether it is one of the
// matrix's rows ('i'), of its columns ('o'), or counts matrices ('b'); any number of each, in any order
// (ParameterGroup::matrix).
//
// Layout: any; products are contractions over named dims, as propagation splits them. Where b dims alone are
//         split, nothing is sent.
// Cost:   of m x n matrices, m <= n, 4 m^2 n + 2 m^3 flops per step.
// Errors: InvalidArgument for another number of roles than dims, and for steps below 0.
// Source: Jordan, "Muon", https://kellerjordan.github.io/posts/muon; PyTorch's Muon, in x's dtype.
DTensor NewtonSchulz(const DTensor& x, absl::string_view roles, const NewtonSchulzOptions& options = {});

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_NEWTON_SCHULZ_H_
