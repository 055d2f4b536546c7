#ifndef WEFT_OPS_ATTENTION_ATTENTION_OF_PARTS_H_
#define WEFT_OPS_ATTENTION_ATTENTION_OF_PARTS_H_

#include "ops/attention/attention.h"

namespace weft {

// The kernels of packed attention on every device that has attention's: those, on q, k and v, and their
// gradients, as views of one tensor.
void AttentionOfParts(const KernelCall<AttentionAttributes, NoScalars>& call);
void AttentionGradOfParts(const KernelCall<AttentionAttributes, NoScalars>& call);

}  // namespace weft

#endif  // WEFT_OPS_ATTENTION_ATTENTION_OF_PARTS_H_
