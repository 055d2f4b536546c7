#ifndef WEFT_RUNTIME_TENSOR_TRANSPOSE_H_
#define WEFT_RUNTIME_TENSOR_TRANSPOSE_H_

#include <cstdint>

namespace weft {

// to[row * to_row + column] = from[column * from_column + row] for words of 1, 2, 4 or 8 bytes: a row is
// contiguous in `to`, a column in `from`. The arrays must not overlap.
//
// Cost: one pass by square tiles that are a cache line wide, transposed in registers. Each line of either
//       side is touched once, in one go: strides that are powers of two put all lines of a tile into one set
//       of the cache, which would drop them between uses.
void TransposeWords(const uint8_t* from, int64_t from_column, uint8_t* to, int64_t to_row, int64_t rows,
                    int64_t columns);
void TransposeWords(const uint16_t* from, int64_t from_column, uint16_t* to, int64_t to_row, int64_t rows,
                    int64_t columns);
void TransposeWords(const uint32_t* from, int64_t from_column, uint32_t* to, int64_t to_row, int64_t rows,
                    int64_t columns);
void TransposeWords(const uint64_t* from, int64_t from_column, uint64_t* to, int64_t to_row, int64_t rows,
                    int64_t columns);

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_TRANSPOSE_H_
