#ifndef WEFT_OPS_NORMALIZATION_NORM_TENSORS_H_
#define WEFT_OPS_NORMALIZATION_NORM_TENSORS_H_

#include "ops/op/kernel_call.h"
#include "ops/op/op.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// The tensors of a call of layer_norm, rms_norm or one of the ops that these are made of, each under its name
// in the op's declaration. rms_norm is layer_norm with a mean of 0 and without b: what it lacks is undefined,
// which kernels read as 0 and do not compute.
//
// Shape: x, y, dy, dx [..., d] of any floating type; w, b, dw, db [d] of that type; the others, which are
//        numbers of rows, [...] in the compute type. Inputs have any strides.
struct NormTensors {
  Tensor x, w, b, dy;
  Tensor mean, rstd;       // statistics: written by the forward ops, read by the others
  Tensor g_mean, gn_mean;  // means of backward: written by one op, read by the next
  Tensor y, dx, dw, db;
};

// Those of `call`, which is of `op`.
NormTensors NormTensorsOf(const OpDef& op, const KernelCallBase& call);

}  // namespace weft

#endif  // WEFT_OPS_NORMALIZATION_NORM_TENSORS_H_
