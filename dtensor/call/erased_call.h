#ifndef WEFT_DTENSOR_CALL_ERASED_CALL_H_
#define WEFT_DTENSOR_CALL_ERASED_CALL_H_

#include <string>

#include "absl/types/span.h"
#include "dtensor/dtensor.h"
#include "ops/op/op.h"

namespace weft {

// One call of an op, the types of its attributes and run-time scalars erased. Borrows all that it names.
struct ErasedCall {
  const OpDef& op;
  absl::Span<const DTensorRef> operands;
  const void* attributes = nullptr;
  const void* scalars = nullptr;
  const Layout* like = nullptr;  // where the output is to lie, if its operands do not tell

  // "matmul(f32[8, 6] [dp, -], f32[6, 4] [-, tp])".
  std::string ToString() const;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CALL_ERASED_CALL_H_
