#ifndef WEFT_OPS_CUDA_CREATION_RANDOM_RUNS_H_
#define WEFT_OPS_CUDA_CREATION_RANDOM_RUNS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "mesh/shard_math.h"
#include "runtime/tensor/cuda/strided_loops.h"

namespace weft {

// Cuts a piece of a tensor into units that draw whole blocks of random words: kUnit elements that follow each
// other in the global tensor, the first at a multiple of kUnit, or as many of them as the piece has. A
// kernel's argument.
//
// The piece is runs: elements that are neighbours in it and in the global tensor.
struct RandomRuns {
  StridedLoops<1> loops;  // over the runs: where they begin, in elements of the global tensor
  uint64_t first = 0;     // the random stream's index of the piece's first element
  int64_t run = 1;        // elements of a run
  int64_t run_units = 1;  // units that a run may touch
  int64_t num_units = 0;
};

// `first`: the index that belongs to element 0 of the global tensor. The piece is not empty.
template <int kUnit>
RandomRuns MakeRandomRuns(const ShardBox& box, int64_t first) {
  const Shape strides = ContiguousStrides(box.global_shape);
  RandomRuns runs;
  for (int dim = 0; dim < box.shape.ndim(); ++dim) first += box.offset[dim] * strides[dim];
  runs.first = static_cast<uint64_t>(first);
  runs.loops = MakeStridedLoops(box.shape, {strides});
  const int inner = runs.loops.num_loops - 1;
  if (inner >= 0 && runs.loops.strides[0][inner] == 1) {
    runs.run = runs.loops.extents[inner];
    runs.loops.num_loops = inner;
    runs.loops.count /= runs.run;
  }
  runs.run_units = (runs.run + 2 * kUnit - 2) / kUnit;  // it may begin at the end of a unit
  runs.num_units = runs.loops.count * runs.run_units;
  return runs;
}

// One unit, or what the piece has of it: elements [begin, end) of the kUnit from `index` on in the random
// stream; element j is element `local` + j of the piece.
struct RandomUnit {
  uint64_t index = 0;
  int64_t local = 0;
  int begin = 0;
  int end = 0;
};

template <int kUnit>
__device__ RandomUnit UnitOf(const RandomRuns& runs, int64_t unit) {
  int64_t run = 0;
  int64_t at[1] = {0};
  if (runs.loops.count > 1) {
    run = unit / runs.run_units;
    runs.loops.Offsets(run, at);
  }
  const uint64_t run_begin = runs.first + static_cast<uint64_t>(at[0]);
  const uint64_t index = (run_begin / kUnit + static_cast<uint64_t>(unit - run * runs.run_units)) * kUnit;
  // Signed: the first unit begins before the run, the last ends behind it.
  const int64_t into_run = static_cast<int64_t>(index - run_begin);
  const int64_t left = runs.run - into_run;
  return {index, run * runs.run + into_run, static_cast<int>(into_run < 0 ? -into_run : 0),
          static_cast<int>(left < kUnit ? (left < 0 ? 0 : left) : kUnit)};
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_CREATION_RANDOM_RUNS_H_
