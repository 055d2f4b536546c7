// An orthonormal basis of what the columns of a thin matrix span.

#ifndef WEFT_PARALLEL_COMPRESSION_METHODS_ORTHOGONALIZE_H_
#define WEFT_PARALLEL_COMPRESSION_METHODS_ORTHOGONALIZE_H_

#include <cstdint>

#include "absl/types/span.h"

namespace weft {

// In place, of [rows, num_columns], row-major and finite: Gram and Schmidt's way, each column twice. A column that the
// ones before it span, up to rounding, becomes 0: scaled up, its rounding errors would not be orthogonal to anything.
void Orthogonalize(absl::Span<float> matrix, int64_t num_columns);
void Orthogonalize(absl::Span<double> matrix, int64_t num_columns);

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_METHODS_ORTHOGONALIZE_H_
