// Rotary position embedding.

#ifndef WEFT_OPS_ATTENTION_ROTARY_H_
#define WEFT_OPS_ATTENTION_ROTARY_H_

#include "ops/op/op.h"

namespace weft {

struct RotaryAttributes {
  // Pair j of e/2 turns by position * base^(-2j/e).
  double base = 10000;
  // Pairs are neighbours (2j, 2j+1), as in RoFormer; else halves (j, j + e/2), as in Llama and GPT-NeoX.
  bool interleaved = false;
  // Turns back: the gradient of the other.
  bool inverse = false;

  bool operator==(const RotaryAttributes&) const = default;
};

// Rotary position embedding of x [b, s, ..., e]: turns each pair of elements by an angle that grows with the
// position along s in the global tensor. Computed in f32 (f64 for f64) from angles in f64.
//
// Layout: all dims but e may be split.
// Errors: InvalidArgument unless x is floating with 3 dims or more, e is even and base is positive.
// Source: Su et al., RoFormer, arXiv 2104.09864.
extern const Op<RotaryAttributes> kRotary;

}  // namespace weft

#endif  // WEFT_OPS_ATTENTION_ROTARY_H_
