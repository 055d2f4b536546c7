// Whether ranks that hold the same piece of a tensor hold the same bits.

#ifndef WEFT_PARALLEL_REPLICAS_H_
#define WEFT_PARALLEL_REPLICAS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// The axes of more than one rank that split a tensor, and those that do not: along these lie its replicas.
struct ReplicaAxes {
  AxisList split;
  AxisList replicas;
};
ReplicaAxes ReplicaAxesOf(const Layout& layout, const DeviceMesh& mesh);

// Of a piece's bits, the same on every machine.
uint64_t HashOfPiece(const Tensor& piece);

struct NamedValue {
  std::string name;
  DTensor tensor;  // without Partial axes
};

// The first value whose replicas differ.
struct ReplicaDifference {
  std::string name;
  int first = 0;                 // the rank that the others differ from
  std::vector<int> others = {};  // ranks, ascending

  std::string ToString() const;  // "ranks 1, 3 than on rank 0"
};

// Compares the replicas of each value, by a hash of its bits.
//
// Cost:    each rank reads its pieces once, and one all-reduce over the mesh of 16 bytes per piece of each value that has
//          replicas, under purpose `metric`, which the host waits for. Nothing where none has.
// Threads: every rank of the mesh calls it alike, and gets the same.
std::optional<ReplicaDifference> CompareReplicas(MeshContext& context, absl::Span<const NamedValue> values);

}  // namespace weft

#endif  // WEFT_PARALLEL_REPLICAS_H_
