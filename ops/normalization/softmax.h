#ifndef WEFT_OPS_NORMALIZATION_SOFTMAX_H_
#define WEFT_OPS_NORMALIZATION_SOFTMAX_H_

#include "ops/op/op.h"

namespace weft {

// Over the last dim of x [..., v], any floating type:
//   softmax:      y = exp(x - max x) / sum exp(x - max x)
//   log_softmax:  y = x - max x - log sum exp(x - max x)
//
// Layout: a split last dim is decomposed: two numbers per row are all-reduced (one in backward), x is not
//         gathered.
extern const Op<> kSoftmax;
extern const Op<> kLogSoftmax;

// y dy -> dx: y * (dy - sum y * dy), and dy - exp(y) * sum dy.
extern const Op<> kSoftmaxGrad;
extern const Op<> kLogSoftmaxGrad;

// The finishing ops of the decompositions: the same with the statistics given, [...], and the last dim free
// to split. x max sum -> y, where sum = sum exp(x - max).
extern const Op<> kSoftmaxApply;
extern const Op<> kLogSoftmaxApply;
// y dy sum -> dx, where sum = sum y * dy, and sum dy.
extern const Op<> kSoftmaxGradApply;
extern const Op<> kLogSoftmaxGradApply;

}  // namespace weft

#endif  // WEFT_OPS_NORMALIZATION_SOFTMAX_H_
