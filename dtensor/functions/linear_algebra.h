#ifndef WEFT_DTENSOR_FUNCTIONS_LINEAR_ALGEBRA_H_
#define WEFT_DTENSOR_FUNCTIONS_LINEAR_ALGEBRA_H_

#include "absl/strings/string_view.h"
#include "dtensor/dtensor.h"

// Products and sums of products.
//
// Layout: any named dim may be split; splitting one that is summed gives Partial(sum). A Partial operand passes, beside one that is
//         not.
// Cost:   no communication where the dims that operands share are split alike; else the cheapest redistribution that makes them so.
// Errors: InvalidArgument for extents of one dim that differ, numbers of dims that do not fit, and operands that are not of one
//         floating dtype.
namespace weft {

// [..., m, k] x [k, n] -> [..., m, n], or [..., m, k] x [..., k, n] with equal leading
// dims.
DTensor MatMul(const DTensor& x, const DTensor& w);
// [b, m, k] x [b, k, n] -> [b, m, n].
DTensor Bmm(const DTensor& x, const DTensor& w);
// x w^T + bias: x [..., d], weight [n, d] as in PyTorch's function (the module of nn/linear.h keeps [d, n]),
// bias [n] or undefined -> [..., n]. Where d is split, the bias is still added once.
DTensor LinearTransform(const DTensor& x, const DTensor& weight, const DTensor& bias = {});
// Named dims: Contract(x, "bsd", w, "dthe", "bsthe"). Letters in both operands and not in the result are
// summed.
DTensor Contract(const DTensor& x, absl::string_view x_dims, const DTensor& w, absl::string_view w_dims,
                 absl::string_view y_dims);
// The same plus a bias along the result's last dims, which must be w's own; undefined: none. Where a summed
// letter is split, it is still added once.
DTensor Contract(const DTensor& x, absl::string_view x_dims, const DTensor& w, absl::string_view w_dims,
                 absl::string_view y_dims, const DTensor& bias);
// Contract(Gelu(h), ...), of equal value: one op where there is a bias, so that the gradient with respect to
// h is one product too.
DTensor GeluContract(const DTensor& h, absl::string_view h_dims, const DTensor& w, absl::string_view w_dims,
                     absl::string_view y_dims, const DTensor& bias = {});

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_LINEAR_ALGEBRA_H_
