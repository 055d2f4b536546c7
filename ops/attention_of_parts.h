#ifndef WEFT_OPS_ATTENTION_OF_PARTS_H_
#define WEFT_OPS_ATTENTION_OF_PARTS_H_

#include "ops/attention.h"

namespace weft {

// The kernels of packed attention on every device that has attention's: those, on q, k and v as views of one
// tensor. Attention's kernels may be given outputs of any strides, whose heads' elements are contiguous.
void AttentionOfParts(const KernelCall<AttentionAttributes, NoScalars>& call);
void AttentionGradOfParts(const KernelCall<AttentionAttributes, NoScalars>& call);

}  // namespace weft

#endif  // WEFT_OPS_ATTENTION_OF_PARTS_H_
