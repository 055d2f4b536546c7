// The sums that bring a compressed gradient to rest, and what its method keeps of each.

#ifndef WEFT_PARALLEL_COMPRESSION_SUM_LEVELS_H_
#define WEFT_PARALLEL_COMPRESSION_SUM_LEVELS_H_

#include <string>
#include <vector>

#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "parallel/compression/communication_method.h"
#include "parallel/compression/compressor.h"
#include "parallel/compression/element_box.h"
#include "parallel/compression/parameter_communication.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// A parameter as its gradients are compressed.
struct CompressedLeaf {
  std::string path;
  TensorType type;  // of the gradient at rest
  Layout layout;    // there; along the axes whole, or split
  ParameterCommunication communication;
};

// A tensor that is kept.
struct CompressionState {
  std::string name;  // "communication.PATH.residual"; of a second sum "communication.PATH.replicas.residual"
  // Per rank: [ranks whose terms are yet to be summed, shape of the parameter], dim 0 split over their axes. Shared: [parts
  // that sum for themselves, elements], dim 0 split over their axes.
  DTensor tensor;
  bool is_shared = false;
  // Where no second sum follows, or none of which the method keeps the same: the name under which another plan keeps it. Its
  // rows are rows of this, too. Otherwise empty.
  std::string of_replicas = {};
};

// One sum over one group of ranks. Where a gradient rests split along some of the axes, ranks along these get their boxes of
// the sum (Compressor::ReduceScatter). Along the others ranks have replicas of the boxes, which are summed after that, by
// the same method again (CompressorRules::of_replicas):
//
//   axes a, b   at rest       first                          then
//   [-, -]      [-, -]        over a, b: all get the sum
//   [-, -]      [0, 1]        over a, b: each gets its box
//   [-, -]      [0, -]        over a: each gets its box      over b: all get the sum of boxes
struct SumLevel {
  CommunicationMethod method;
  AxisList axes;          // over which, ascending, of several ranks each
  bool scatters = false;  // each rank gets its box
  Layout before;          // Partial sums along what is yet to be summed, whole there
  Layout after;
};

// None, if there is one rank.
std::vector<SumLevel> SumLevelsOf(const CompressedLeaf& leaf, const DeviceMesh& mesh);

// Of each level, what its compressor keeps of it in `dtype`, zero, on this rank: the same names on every rank, those of the
// largest piece.
std::vector<std::vector<CompressionState>> MakeCompressionState(
    MeshContext& context, const CompressedLeaf& leaf, const std::vector<SumLevel>& levels,
    const std::vector<const Compressor*>& compressors, DType dtype);

// The name of such a tensor.
std::string CompressionStateName(const CompressedLeaf& leaf, int index, absl::string_view state);

// Of a level that scatters, the box that each member of a group owns of what this rank has to be summed.
std::vector<ElementBox> BoxesOf(const MeshContext& context, const CompressedLeaf& leaf, const SumLevel& level,
                                absl::Span<const int> ranks);

// What random bits go by, besides the rank in the group: groups that sum other terms or other elements of one parameter do
// not share them. Groups that sum the same (of tensor-parallel ranks that have the parameter whole) do.
std::string StreamPathOf(const MeshContext& context, const CompressedLeaf& leaf, const SumLevel& level,
                         int index);

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_SUM_LEVELS_H_
