#ifndef WEFT_OPS_CUDA_INDEXING_SUM_BY_INDEX_H_
#define WEFT_OPS_CUDA_INDEXING_SUM_BY_INDEX_H_

#include "ops/cuda/blocks/indices.h"
#include "ops/op/kernel_call.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// For each slot, i32: how many j have an index that goes there, one outside the whole counted as `of_bad`.
//
// Shape: index is a row-major i64 list.
Tensor CudaCountPlaces(const KernelCallBase& call, const Tensor& index, const CudaSlots& slots,
                       int of_bad = 1);

// y[o, v, k] = the sum of src[o, j, k] over the j with index[j] = slots.first + v, in ascending order, from `start` on:
// gradients of rows that a list selected. Indices outside y's range are another rank's; one outside the whole
// makes the slot that it goes to nan. Halves are added in float and rounded once; integers wrap.
//
// Shape: index is a row-major i64 list; y and src are row-major and differ in dim `dim` only; o runs over the
//        dims before it, k over those after it.
// Cost:  the list is sorted by counting, with integer atomics, whose order shows nowhere: the places of one
//        index are then put in order, those of an index with more than 512 by one block that goes over the
//        whole list. Workspace of three numbers per slot and one per place. A block adds the rows of one index,
//        one after the other, so few indices use few of a GPU's blocks. Of one dim and more than 8 slots per place, the places
//        are sorted instead (CudaSortRows): workspace of 72 bytes per place at most, and the same bits.
void CudaSumByList(const KernelCallBase& call, const Tensor& y, const Tensor& src, int dim,
                   const Tensor& index, const CudaSlots& slots, double start = 0);

// y[o, v, k] = the sum of src[o, j, k] over the j with index[o, j, k] = slots.first + v, in ascending order; as
// above, but the index is a block of src's shape.
//
// Cost:  one thread adds up a column (o, k). A block of one dim is a list, as above; integers are added by
//        atomics, a thread for each term.
void CudaSumByBlock(const KernelCallBase& call, const Tensor& y, const Tensor& src, int dim,
                    const Tensor& index, const CudaSlots& slots, double start = 0);

}  // namespace weft

#endif  // WEFT_OPS_CUDA_INDEXING_SUM_BY_INDEX_H_
