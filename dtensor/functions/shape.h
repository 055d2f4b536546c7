#ifndef WEFT_DTENSOR_FUNCTIONS_SHAPE_H_
#define WEFT_DTENSOR_FUNCTIONS_SHAPE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "dtensor/dtensor.h"

// The same elements under another shape, order or extent. Dims may be negative: they count from the end.
//
// Layout: a split dim stays split, and a Partial sum Partial, unless a function says otherwise.
// Cost:   no communication, unless a function says otherwise.
// Errors: InvalidArgument for a dim outside x, and for shapes, sizes or orders that do not fit x.
namespace weft {

// The elements in row-major order under another shape, of which one extent may be -1: what is left for it.
//
// Layout: every split stays whose pieces are boxes of the result (ViewLayout); where some are not, x is
//         redistributed first, by what is cheapest.
// Cost:   that redistribution, implicit: an all-to-all or an all-gather; none where every split stays.
// Errors: InvalidArgument if the numbers of elements differ, or for more than one -1.
DTensor Reshape(const DTensor& x, const Shape& shape);
// The same where nothing has to move.
// Errors: InvalidArgument, where something has, that names the shape as which x can be seen where it lies,
//         and the nearest layout from which it can be seen as `shape`.
DTensor View(const DTensor& x, const Shape& shape);
// Reshapes of one dim or a few: dims `start` to `end` as one; one dim as several, of which one extent may be
// -1; without dims of extent 1, all or one (no change if its extent is not 1); with one more before `dim`.
// Layout: as Reshape.
// Cost:   as Reshape.
DTensor Flatten(const DTensor& x, int start = 0, int end = -1);
DTensor Unflatten(const DTensor& x, int dim, const Shape& sizes);
DTensor Squeeze(const DTensor& x);
DTensor Squeeze(const DTensor& x, int dim);
DTensor Unsqueeze(const DTensor& x, int dim);
// Repeats dims of extent 1, and all of x along new leading dims, to `shape`; -1 keeps an extent.
DTensor Expand(const DTensor& x, const Shape& shape);

DTensor Permute(const DTensor& x, const std::vector<int>& order);
DTensor Transpose(const DTensor& x, int dim_a, int dim_b);

// Parts of x, and x in parts, along one dim.
//
// Layout: where x is split along the dim, so is the result, and elements go from rank to rank (Rearrange): x
//         is not gathered. A part of fewer elements than ranks becomes Partial: its owners give it.
// Cost:   where the dim is split, one all-to-all for each part, or for all operands of Concat, of what changes hands. Stack moves
//         nothing where its operands lie alike; Unbind gathers a split dim.
// Errors: InvalidArgument for a range outside x, sizes that are not x's extent together, no parts to join, or parts that differ in
//         dtype or in another dim.
DTensor Slice(const DTensor& x, int dim, int64_t start, int64_t length);
std::vector<DTensor> Split(const DTensor& x, const std::vector<int64_t>& sizes, int dim);
// Parts of `size` elements, the last one shorter.
std::vector<DTensor> Split(const DTensor& x, int64_t size, int dim);
DTensor Concat(const std::vector<DTensor>& parts, int dim);
DTensor Stack(const std::vector<DTensor>& parts, int dim);
std::vector<DTensor> Unbind(const DTensor& x, int dim);

// `value` before and after x, so many elements per dim, first to last.
// Layout: as Slice.
// Cost:   one all-to-all for each split dim that grows.
// Errors: InvalidArgument for another number of widths than of dims, or a negative one; for a value as Full's.
DTensor Pad(const DTensor& x, const std::vector<std::pair<int64_t, int64_t>>& widths, double value = 0);
// Turned by `shift` along a dim: element i goes to i + shift, and round the end.
// Layout: as Slice.
// Cost:   one all-to-all where the dim is split.
DTensor Roll(const DTensor& x, int64_t shift, int dim);
// Reversed along dims.
// Layout: as x; a split dim is reduce-scattered, each rank having written what it holds.
// Cost:   one reduce-scatter for each split dim that is reversed.
// Errors: InvalidArgument for a dim that is listed twice.
DTensor Flip(const DTensor& x, const std::vector<int>& dims);

// The last two dims on and below, or on and above, the diagonal, 0 elsewhere; diagonals above the main one
// are positive.
// Errors: InvalidArgument for an x of less than two dims.
DTensor Tril(const DTensor& x, int64_t diagonal = 0);
DTensor Triu(const DTensor& x, int64_t diagonal = 0);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_SHAPE_H_
