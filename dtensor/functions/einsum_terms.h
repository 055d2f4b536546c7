#ifndef WEFT_DTENSOR_FUNCTIONS_EINSUM_TERMS_H_
#define WEFT_DTENSOR_FUNCTIONS_EINSUM_TERMS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/tensor/shape.h"

namespace weft {

// An index of an einsum as a number: 'A' to 'Z' are 0 to 25, 'a' to 'z' 26 to 51, and the dims that "..."
// stands for the next eight, outermost first: alphabetical order is numerical order.
using EinsumLabel = int;
inline constexpr EinsumLabel kFirstEllipsisLabel = 52;
inline constexpr int kNumEinsumLabels = kFirstEllipsisLabel + Shape::kMaxDims;

// A set of labels: bit i is label i.
using EinsumLabelSet = uint64_t;
EinsumLabelSet LabelSet(const std::vector<EinsumLabel>& labels);

// An equation taken apart against the shapes of its operands.
struct EinsumTerms {
  std::vector<std::vector<EinsumLabel>> operands;  // of each dim of each operand
  std::vector<EinsumLabel> output;
  std::array<int64_t, kNumEinsumLabels> extents = {};  // by label; 0 for one that nothing has

  bool operator==(const EinsumTerms&) const = default;
};

// Reads "bij, bjk -> bik", "...ij,...jk" and the like, as PyTorch and NumPy do: blanks are free; "..." stands
// for the dims that have no letter, aligned from the last; without "->" the output is the dims of "..."
// first, then the letters that stand once in all, in alphabetical order (capitals first). A dim of extent 1
// repeats where another operand's dim of that letter is longer.
//
// Errors: InvalidArgument that quotes the equation, for text that is no equation, a number of terms or
//         letters that does not fit the operands, extents that differ, an output letter that no operand has,
//         and a letter that stands twice in one term (a diagonal).
EinsumTerms ParseEinsum(absl::string_view equation, absl::Span<const Shape> shapes);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_EINSUM_TERMS_H_
