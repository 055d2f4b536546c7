#ifndef WEFT_DTENSOR_CONTEXT_MESH_TRANSFER_CACHE_H_
#define WEFT_DTENSOR_CONTEXT_MESH_TRANSFER_CACHE_H_

#include <memory>
#include <utility>

#include "dtensor/context/bounded_cache.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "mesh/redistribution/lowering.h"
#include "runtime/comm/communicator.h"
#include "runtime/tensor/shape.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// Both ends of a transfer between two meshes, which may have any shapes and any ranks of the world.
struct MeshTransferEnds {
  DeviceMesh from_mesh;
  Layout from;
  DeviceMesh to_mesh;
  Layout to;
  TensorType type;

  bool operator==(const MeshTransferEnds&) const = default;
  // Of the meshes the numbers of ranks: `==` tells the rest, and finds most meshes equal by their pointers.
  template <class H>
  friend H AbslHashValue(H state, const MeshTransferEnds& ends) {
    return H::combine(std::move(state), ends.from_mesh.num_ranks(), ends.from, ends.to_mesh.num_ranks(),
                      ends.to, ends.type);
  }
};

// What this rank does in a transfer: worked out once, and run as often as it is met.
struct LoweredMeshTransfer {
  Layout reduced;       // on the source mesh, of what leaves it
  Layout landing;       // on the target mesh, of what arrives
  Shape landing_shape;  // of this rank's piece, where it is in the target mesh
  LoweredExchange exchange;
  Communicator* group = nullptr;  // of the ranks of either mesh; the rank state's
};

// One per rank, whatever meshes it is in: both ends of a transfer find the same.
class MeshTransferCache : public BoundedCache<MeshTransferEnds, std::shared_ptr<const LoweredMeshTransfer>> {
 public:
  using BoundedCache::BoundedCache;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_MESH_TRANSFER_CACHE_H_
