#ifndef WEFT_OPS_OPTIMIZER_BLOCK_QUANTIZE_H_
#define WEFT_OPS_OPTIMIZER_BLOCK_QUANTIZE_H_

#include <cstdint>

#include "ops/op/op.h"
#include "runtime/base/dtype.h"

namespace weft {

// Tensors in 8 bits per element: blocks of 256 elements share a scale, the largest magnitude among them, and each element is
// the code of a value of the dynamic map (dynamic_map.h) that is multiplied by it: the nearest; without signs what is above 0
// stays above 0.
//
// Shape:  blocks are cut from the dims after the first, in row-major order, for each index of the first; of a vector from its
//         only dim. So x [d, ...] has scales [d, blocks per row], x [n] has scales [blocks]: what a block is follows from the
//         global shape, whatever the layout.
// Layout: dim 0 may be split, of x, codes and scales alike. Where another dim of x is split (or a vector's), blocks reach over
//         pieces: the scales are whole there, and the largest magnitudes Partial(max).
inline constexpr int64_t kBlockElements = 256;

// Of the scales of x's shape.
Shape BlockScalesShape(const Shape& x);

// (q, a) -> x: codes q, u8, and scales a, f32.
// Errors: InvalidArgument for other dtypes or shapes than these.
struct DequantizeAttributes {
  bool is_signed = true;
  DType dtype = DType::kF32;  // of x, floating

  bool operator==(const DequantizeAttributes&) const = default;
};
extern const Op<DequantizeAttributes> kDequantizeBlocks;

// (x) -> a, f32: the largest magnitude of each block; NaN wins.
extern const Op<> kBlockMagnitudes;

// (q, a, x, new, s), in place: a = new and q = the codes of x by those scales, of x 0 where the scale is 0; nothing if the
// scalar s (f32 or f64) is not finite.
struct QuantizeAttributes {
  bool is_signed = true;

  bool operator==(const QuantizeAttributes&) const = default;
};
extern const Op<QuantizeAttributes> kQuantizeBlocks;

}  // namespace weft

#endif  // WEFT_OPS_OPTIMIZER_BLOCK_QUANTIZE_H_
