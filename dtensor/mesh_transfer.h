// A value on another mesh than it lies on.

#ifndef WEFT_DTENSOR_MESH_TRANSFER_H_
#define WEFT_DTENSOR_MESH_TRANSFER_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/context/mesh_transfer_cache.h"
#include "dtensor/dtensor.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"

namespace weft {

// Whether every rank of either mesh is in both.
bool HaveSameRanks(const DeviceMesh& a, const DeviceMesh& b);

// The same value on another mesh. Every rank of either mesh calls it alike, and no others; each region goes
// straight from a rank that holds it to the ranks that want it. Terms of a Partial source are reduced on the
// source mesh first. The plan is kept in the rank state's cache.
//
// `source`: on the ranks of `ends.from_mesh`, laid as `ends` says; undefined on the others.
// `target`: the context of `ends.to_mesh` on its ranks, which the result is on; null on the others, which get
//           an undefined result.
// Cost:   point-to-point messages over the ranks of both meshes, MeshTransfer::NumMoved elements in all.
// Errors: InvalidArgument if the arguments do not fit `ends` or this rank, or if `source` has a history, of which
//         ranks outside of its mesh do not know: BringTo tells them.
DTensor Redistribute(const MeshTransferEnds& ends, const DTensor& source,
                     const IntrusivePtr<MeshContext>& target);

// The same where every rank of both meshes is in both. A gradient goes back the same way, to where the source lies;
// whole where the source was Partial.
DTensor Redistribute(const DTensor& source, const IntrusivePtr<MeshContext>& target, const Layout& layout);

// The same value, without history, on `target`'s side of the ranks' devices, whether it lies on that mesh already or on another
// of the same ranks, in either memory. It may share memory with `value`.
//
// `what`: what the value is for, in the error.
// Cost:   DTensor::Redistribute on the same mesh; otherwise as the above.
// Errors: InvalidArgument that starts with `what`, if the meshes have different ranks.
DTensor MovedTo(const DTensor& value, const IntrusivePtr<MeshContext>& target, const Layout& layout,
                absl::FunctionRef<std::string()> what);

// The same where the meshes have any ranks, and those outside of the source's know nothing of it: neither its type and
// layout, nor whether it has a history. They are told, ahead of the elements.
//
// Called alike by the ranks of both meshes, and by any others, which do nothing. On ranks outside of its mesh `source`
// is absent; the result is so on ranks outside of `target`'s (DTensor::Absent). A gradient goes back the same way:
// each rank of the two meshes has this on its tape, and runs it in its backward pass, one that got no gradient too. So
// whatever leads from the result to what is differentiated has to lead there on each of these ranks, with an absent
// tensor as well: what modules on parts of a model do (dtensor/nn/part_call.h).
//
// `layout_of`: how a tensor of so many dims is to lie on the target mesh; the same on every rank.
// Cost:   as Redistribute; besides, one message of kToldBytes to each rank that is told.
// Errors: FailedPrecondition in a backward pass that is recorded (create_graph).
DTensor BringTo(const DTensor& source, const IntrusivePtr<MeshContext>& target,
                absl::FunctionRef<Layout(int ndim)> layout_of);

// What a rank is told of a tensor that it is about to get: some words.
inline constexpr int64_t kToldBytes = 8 * (4 + Layout::kMaxDims + 2);

}  // namespace weft

#endif  // WEFT_DTENSOR_MESH_TRANSFER_H_
