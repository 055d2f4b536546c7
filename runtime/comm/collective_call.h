#ifndef WEFT_RUNTIME_COMM_COLLECTIVE_CALL_H_
#define WEFT_RUNTIME_COMM_COLLECTIVE_CALL_H_

#include <chrono>
#include <cstdint>

#include "absl/types/span.h"
#include "runtime/comm/collective.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// One member's part in a collective, as backends run it. Views the caller's data. An undefined tensor: this
// member has none.
struct CollectiveCall {
  const CollectiveDescriptor& descriptor;
  const Tensor& input;
  const Tensor& output;
  absl::Span<const int64_t> receive_counts;  // all-to-all
  uint64_t sequence = 0;
  std::chrono::milliseconds timeout;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_COLLECTIVE_CALL_H_
