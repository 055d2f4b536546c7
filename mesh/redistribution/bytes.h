#ifndef WEFT_MESH_REDISTRIBUTION_BYTES_H_
#define WEFT_MESH_REDISTRIBUTION_BYTES_H_

#include <cstdint>

#include "mesh/redistribution/move.h"
#include "mesh/redistribution/redistribution.h"
#include "runtime/base/dtype.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// What the worst rank of a step receives, and in how many rounds of messages one after another.
struct StepTraffic {
  int64_t bytes = 0;
  int64_t rounds = 0;
  AxisMask axes = 0;  // that the messages run along
};

// Elements that all ranks together hold under both layouts: exact, uneven pieces included.
//
// Cost:   a microsecond or so, whatever the number of ranks, where no dim is cut anew over an axis that counts
//         elsewhere too; otherwise in proportion to the ranks along the axes that do, for axes of two sizes to
//         the smaller.
int64_t NumKept(const Layout& from, const Layout& to, const Shape& shape, const DeviceMesh& mesh);

// All of these are exact for uneven shards and count what members lack: an all-reduce is a reduce-scatter and
// an all-gather.
// Layout: `from` is the step's source.
// Errors: InvalidArgument if layout, shape and mesh do not fit.

// Bytes of one step, summed over all ranks of the mesh: what the communication ledger records when it runs.
int64_t StepBytes(const RedistributionStep& step, const Layout& from, const TensorType& type,
                  const DeviceMesh& mesh);
// The sum over the steps.
int64_t TotalBytes(const Redistribution& plan, const TensorType& type, const DeviceMesh& mesh);

// Rounds: an all-gather or reduce-scatter over n ranks takes ceil(log2 n), an all-reduce twice that; moves
// take one for each peer.
StepTraffic WorstRankTraffic(const RedistributionStep& step, const Layout& from, const TensorType& type,
                             const DeviceMesh& mesh);
// Bytes received over the steps, each counted at its own worst rank: the steps run one after another, and
// each takes as long as its worst rank. Where extents divide evenly that is the worst rank of the plan.
int64_t WorstRankBytes(const Redistribution& plan, const TensorType& type, const DeviceMesh& mesh);

// The most bytes that a rank holds while the plan runs: the caller's piece, a step's input and output, and
// the buffers that messages are packed in where pieces do not lie in one run. Of contiguous pieces.
int64_t PeakBytes(const Redistribution& plan, const TensorType& type, const DeviceMesh& mesh);
// What one step takes of that beyond its input, which is a piece under `buffer` or, after a slice, a view of
// one.
int64_t StepMemory(StepKind kind, const Layout& buffer, const Layout& from, const Layout& result,
                   const TensorType& type, const DeviceMesh& mesh);

// The parts that reductions are priced from. `elements`: that a rank ends with.
StepTraffic ReduceScatterTraffic(AxisMask axes, int64_t elements, DType dtype, const DeviceMesh& mesh);
StepTraffic AllReduceTraffic(AxisMask axes, int64_t elements, DType dtype, const DeviceMesh& mesh);
StepTraffic MoveTraffic(const Move& move, DType dtype, const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_BYTES_H_
