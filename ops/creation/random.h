#ifndef WEFT_OPS_CREATION_RANDOM_H_
#define WEFT_OPS_CREATION_RANDOM_H_

#include "ops/op/op.h"
#include "runtime/base/philox.h"

namespace weft {

// Ops that make tensors from nothing, and dropout.
//
// A random value is a function of the key and of the element's row-major index in the global tensor, so any
// piece has the bits that the whole has there. `batch_offset`: where the tensor starts in a longer one along
// dim 0, as a microbatch does in the global batch; indices are those of the longer one. Values are made in
// f32 (arange in f64) and rounded to the dtype.

// The type of a created tensor; any dtype but for the random ones, which are floating.
// Errors: InvalidArgument naming the op and the type.
struct CreationAttributes {
  DType dtype = DType::kF32;
  Shape shape;  // global

  bool operator==(const CreationAttributes&) const = default;
};

// Uniform in [low, high); rounding may reach high.
struct UniformScalars {
  RandomKey key;
  double low = 0;
  double high = 1;
  int64_t batch_offset = 0;
};
extern const Op<CreationAttributes, UniformScalars> kRandomUniform;

struct NormalScalars {
  RandomKey key;
  double mean = 0;
  double stddev = 1;
  int64_t batch_offset = 0;
};
extern const Op<CreationAttributes, NormalScalars> kRandomNormal;

// 1 with the given probability, else 0; any dtype, bool masks among them.
// Errors: InvalidArgument, from the kernel, unless 0 <= probability <= 1.
struct BernoulliScalars {
  RandomKey key;
  double probability = 0.5;
  int64_t batch_offset = 0;
};
extern const Op<CreationAttributes, BernoulliScalars> kBernoulli;

// The same with a probability of its own for every element: p -> y of p's type, floating. Not differentiable.
// Errors: InvalidArgument, from the kernel, naming the first probability outside [0, 1] that it meets. On a
//         GPU, whose kernels cannot throw, y is NaN there instead.
struct KeyScalars {
  RandomKey key;
  int64_t batch_offset = 0;
};
extern const Op<NoAttributes, KeyScalars> kBernoulliOf;

struct FillScalars {
  double value = 0;
};
extern const Op<CreationAttributes, FillScalars> kFill;

// start + i * step in f64, for i in [0, shape[0]): integers up to 2^53 are exact.
// Errors: InvalidArgument unless the shape has one dim.
struct ArangeScalars {
  double start = 0;
  double step = 1;
};
extern const Op<CreationAttributes, ArangeScalars> kArange;

// Zero with probability `rate`, else x / (1 - rate). The key makes the mask, again in backward, so nothing is
// saved.
// Errors: InvalidArgument, from the kernel, unless 0 <= rate < 1; from inference for a dtype that is not
//         floating.
struct DropoutScalars {
  RandomKey key;
  double rate = 0;
  int64_t batch_offset = 0;
};
extern const Op<NoAttributes, DropoutScalars> kDropout;

// The random index of the first element of a tensor of shape `global`: that of the longer tensor in which it
// starts at `batch_offset` along dim 0. 0 for a scalar, which has no dim 0.
int64_t FirstRandomIndex(const Shape& global, int64_t batch_offset);

}  // namespace weft

#endif  // WEFT_OPS_CREATION_RANDOM_H_
