#ifndef WEFT_OPS_SHARDING_SHARDING_RULE_H_
#define WEFT_OPS_SHARDING_SHARDING_RULE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/base/reduce_op.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// One index of a rule: dims that carry the same factor are split together.
struct Factor {
  std::string name;
  int64_t size = 0;      // its extent, where an operand or output type tells it
  bool whole = false;    // "w!": must not be split, unless by the op's decomposition
  bool indexed = false;  // "v@": looked up by index; the owner of a piece computes it, the others give zero

  bool operator==(const Factor&) const = default;
};

// How an op may be split, as an index expression over factors (as in einsum, and as Shardy prints its rules):
//
//   "b s d, d t h e -> b s t h e"     a product; splitting d gives Partial(sum)
//   "b s d!, d! -> b s d!"            a norm: d must be whole
//   "b s, v@ d -> b s d"              an embedding: splitting v gives Partial(sum), by owner-computes
//   "b s v -> max: b s"               a reduction: splitting v gives Partial(max)
//   "a b, 1 b -> a b"                 broadcasting: "1" is a dim that no axis may split
//   "a b -> ()"                       "()" is a scalar
//   "a x! ~> a y! z!"                 a view: the same elements in the same row-major order. Splits of x may
//                                     pass too, by layout algebra, where pieces are boxes of the output
//   "b c@, b c@ -> b d"               a concatenation: each operand's dim is split by itself, and the owner
//                                     of a piece writes it; d is only in the output: each rank makes its own
//                                     part
//   "b d, b n -> d n, n {1}"          a linear layer's gradients of w and b; that of b is made of operand 1
//                                     alone, so splitting d leaves it as it is
//
// Operands and outputs are separated by ',' and have one factor (or "1") a dim. A factor of operands and
// outputs passes a split through. An output that lacks a split factor of the operands that it is made of
// (those numbered behind it, all if unsaid) becomes Partial, of the kind written before the output ("max:",
// "min:", "product:"; sum if unsaid). A factor stands for one extent, but for an indexed one, which may stand
// for another in every operand: each is then cut into chunks of its own.
struct ShardingRule {
  std::vector<Factor> factors;
  std::vector<std::vector<int>> operands;  // per operand, per dim: factor number, or -1 for "1"
  std::vector<std::vector<int>> outputs;
  std::vector<ReduceOp> reductions;       // per output
  std::vector<std::vector<int>> made_of;  // per output: the operands behind it, or none if it is made of all
  bool is_view = false;                   // "~>"

  bool operator==(const ShardingRule&) const = default;

  bool IsMadeOf(int output, int operand) const;

  // The text form above; Parse and ToString are inverse up to blanks.
  std::string ToString() const;

  // Errors: Internal (a defect of the op) for text that does not parse, numbers of operands, outputs or dims
  //         that are not the types', a view of several, an output made of what is no operand, or a factor
  //         that stands for two extents unless it is indexed.
  static ShardingRule Parse(absl::string_view text, absl::Span<const TensorType> operands,
                            absl::Span<const TensorType> outputs);
};

// Rules that many ops share. Factor names are f0, f1, ... by dim.
// "f0 f1, f0 f1 -> f0 f1": all operands and outputs of one shape.
std::string ElementwiseRule(int num_operands, int num_outputs, int ndim);
// NumPy broadcasting of the operands to their common shape.
std::string BroadcastRule(absl::Span<const TensorType> operands);

}  // namespace weft

#endif  // WEFT_OPS_SHARDING_SHARDING_RULE_H_
