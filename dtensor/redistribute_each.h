#ifndef WEFT_DTENSOR_REDISTRIBUTE_EACH_H_
#define WEFT_DTENSOR_REDISTRIBUTE_EACH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/context/lane.h"
#include "dtensor/dtensor.h"

namespace weft {

// One of several redistributions.
struct EachMove {
  DTensorRef source;
  Layout to;
  // Where the result's piece is to lie: contiguous, of its type and shape. Undefined: in new memory, or in the
  // source's where nothing moves. A reduction to the source's own layout may go into the source's piece.
  Tensor into = {};
  // What is moved, as a number of the caller's: the ranks' collectives are an error if the numbers of their moves are not
  // the same, as they are with other shapes. 0: nothing is said.
  uint32_t subject = 0;
};

// The same values under other layouts, with no history: many moves in one call, each planned as if it stood
// alone, and with the same bits. All-gathers, reduce-scatters and all-reduces over the same axes, by the same
// op and in the same dtype, are one call of the communicator, which packs parts only where its backend must. Values in the
// ranks' second memory (dtensor/host_memory.h) stay there, and have calls of their own, behind those of the others.
//
// On another lane than kInline it returns once everything is issued: the results are pending, and what reads
// one first waits for all of the call (DTensorImpl::Local). Outputs are allocated, purpose and module path
// taken down at the call. An error of the collectives is thrown by the first reader. A source may be pending
// itself, on any lane: this lane's worker waits for it, not the caller. On a GPU all of it runs in the lane's own stream
// (DeviceQueue), which waits for what the rank's stream has been given by then and for the lanes of sources that are
// pending; the rank's stream waits for it only where a result is read.
//
// Cost:    PlanRedistribution's steps.
// Errors:  InvalidArgument for sources on different meshes, an undefined one, or an `into` of another type or
//          shape.
// Threads: every rank of the mesh calls it alike, in the same order on each lane.
std::vector<DTensor> RedistributeEach(absl::Span<const EachMove> moves, Lane lane = Lane::kInline);

}  // namespace weft

#endif  // WEFT_DTENSOR_REDISTRIBUTE_EACH_H_
