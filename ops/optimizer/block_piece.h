#ifndef WEFT_OPS_OPTIMIZER_BLOCK_PIECE_H_
#define WEFT_OPS_OPTIMIZER_BLOCK_PIECE_H_

#include <cstdint>

#include "mesh/shard_math.h"
#include "ops/optimizer/block_quantize.h"
#include "runtime/base/error.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Which elements of a piece the blocks of block_quantize.h hold. A row is what one index of dim 0 has, or a whole vector.
struct BlockPiece {
  int64_t rows = 1;            // of the piece
  int64_t row_elements = 1;    // of the whole tensor's rows
  int64_t piece_elements = 1;  // of the piece's rows
  int64_t blocks = 0;          // per row
  int num_dims = 0;            // of a row
  int64_t extent[Shape::kMaxDims] = {};
  int64_t offset[Shape::kMaxDims] = {};
  int64_t local[Shape::kMaxDims] = {};

  // Where element `index` of the whole row stands in the piece's row; -1 if it is not there.
  constexpr int64_t Find(int64_t index) const {
    if (piece_elements == row_elements) return index;
    int64_t found = 0;
    int64_t stride = 1;
    for (int dim = num_dims - 1; dim >= 0; --dim) {
      const int64_t here = index % extent[dim] - offset[dim];
      if (here < 0 || here >= local[dim]) return -1;
      found += here * stride;
      stride *= local[dim];
      index /= extent[dim];
    }
    return found;
  }
};

inline BlockPiece BlockPieceOf(const ShardBox& box) {
  const int first = box.global_shape.ndim() > 1 ? 1 : 0;
  BlockPiece piece;
  if (first == 1) piece.rows = box.shape[0];
  for (int dim = first; dim < box.global_shape.ndim(); ++dim) {
    piece.extent[piece.num_dims] = box.global_shape[dim];
    piece.offset[piece.num_dims] = box.offset[dim];
    piece.local[piece.num_dims++] = box.shape[dim];
    piece.row_elements *= box.global_shape[dim];
    piece.piece_elements *= box.shape[dim];
  }
  piece.blocks = (piece.row_elements + kBlockElements - 1) / kBlockElements;
  return piece;
}

// Errors: Internal, unless the piece's elements, and the scales of its rows, are as many as the tensors have: a kernel that is called
//         with other boxes, as the search for missing rules does, writes nowhere else.
inline void CheckBlockElements(const BlockPiece& piece, const Tensor& elements) {
  WEFT_CHECK(elements.num_elements() == piece.rows * piece.piece_elements, "blocks of ",
             piece.rows * piece.piece_elements, " elements in ", elements.TypeString());
}
inline void CheckBlockScales(const BlockPiece& piece, const Tensor& scales) {
  WEFT_CHECK(scales.num_elements() == piece.rows * piece.blocks, "scales of ", piece.rows, " rows of ",
             piece.blocks, " blocks in ", scales.TypeString());
}

}  // namespace weft

#endif  // WEFT_OPS_OPTIMIZER_BLOCK_PIECE_H_
