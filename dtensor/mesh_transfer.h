#ifndef WEFT_DTENSOR_MESH_TRANSFER_H_
#define WEFT_DTENSOR_MESH_TRANSFER_H_

#include "dtensor/context/mesh_context.h"
#include "dtensor/context/mesh_transfer_cache.h"
#include "dtensor/dtensor.h"
#include "mesh/layout.h"

namespace weft {

// The same value on another mesh. Every rank of either mesh calls it alike, and no others; each region goes
// straight from a rank that holds it to the ranks that want it. Terms of a Partial source are reduced on the
// source mesh first. The plan is kept in the rank state's cache.
//
// `source`: on the ranks of `ends.from_mesh`, laid as `ends` says; undefined on the others.
// `target`: the context of `ends.to_mesh` on its ranks, which the result is on; null on the others, which get
//           an undefined result.
// Cost:   point-to-point messages over the ranks of both meshes, MeshTransfer::NumMoved elements in all.
// Errors: InvalidArgument if the arguments do not fit `ends` or this rank, or if `source` has a history: a
//         gradient does not cross meshes; detach it.
DTensor Redistribute(const MeshTransferEnds& ends, const DTensor& source,
                     const IntrusivePtr<MeshContext>& target);

// The same where every rank of both meshes is in both.
DTensor Redistribute(const DTensor& source, const IntrusivePtr<MeshContext>& target, const Layout& layout);

}  // namespace weft

#endif  // WEFT_DTENSOR_MESH_TRANSFER_H_
