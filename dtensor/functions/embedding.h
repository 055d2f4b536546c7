#ifndef WEFT_DTENSOR_FUNCTIONS_EMBEDDING_H_
#define WEFT_DTENSOR_FUNCTIONS_EMBEDDING_H_

#include "dtensor/dtensor.h"

// Vectors of tokens, and of their positions.
namespace weft {

// tokens [...], table [v, d] -> [..., d]
DTensor EmbeddingLookup(const DTensor& tokens, const DTensor& table);

// Rotary position embedding of x [b, s, h, e].
DTensor Rotary(const DTensor& x, double base = 10000);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_EMBEDDING_H_
