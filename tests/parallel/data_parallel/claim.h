#ifndef WEFT_TESTS_PARALLEL_DATA_PARALLEL_CLAIM_H_
#define WEFT_TESTS_PARALLEL_DATA_PARALLEL_CLAIM_H_

#include "dtensor/dtensor.h"
#include "mesh/layout.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// A DTensor over `local` that claims `layout` and the history of `source`: how a mistake is made.
inline DTensor Claim(const DTensor& source, const Layout& layout, const Tensor& local) {
  DTensor claimed(MakeIntrusive<DTensorImpl>(source.context(), layout, source.type(), local));
  claimed.impl()->node = source.impl()->node;
  claimed.impl()->output = source.impl()->output;
  return claimed;
}

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_DATA_PARALLEL_CLAIM_H_
