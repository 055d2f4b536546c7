#ifndef WEFT_DTENSOR_FUNCTIONS_EMBEDDING_H_
#define WEFT_DTENSOR_FUNCTIONS_EMBEDDING_H_

#include "dtensor/dtensor.h"

// Vectors of tokens, and of their positions.
namespace weft {

// tokens [...] i32 or i64, table [v, d] -> [..., d]
//
// Layout: tokens and d may be split. Where v is, the owner of a row gives it, the others zero, and the result is Partial(sum).
// Cost:   no communication: the table is not gathered.
// Errors: InvalidArgument that names the first token outside [0, v); on a GPU the element is NaN instead.
DTensor EmbeddingLookup(const DTensor& tokens, const DTensor& table);

// Rotary position embedding of x [b, s, h, e].
//
// Layout: all dims but e may be split: a piece knows its positions in the whole.
// Cost:   no communication where e is whole.
// Errors: InvalidArgument unless x is floating with 3 dims or more, e is even and base is positive.
// Source: Su et al., RoFormer, arXiv 2104.09864.
DTensor Rotary(const DTensor& x, double base = 10000);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_EMBEDDING_H_
