#ifndef WEFT_MESH_REDISTRIBUTION_REARRANGEMENT_H_
#define WEFT_MESH_REDISTRIBUTION_REARRANGEMENT_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "mesh/redistribution/bytes.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// Elements [from, from + length) of a dim of source number `source`, which become [to, to + length) of the
// result.
struct DimRun {
  int source = 0;
  int64_t from = 0;
  int64_t to = 0;
  int64_t length = 0;

  bool operator==(const DimRun&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const DimRun& run) {
    return H::combine(std::move(state), run.source, run.from, run.to, run.length);
  }
};

// The elements of tensors in a new order along one dim: what slices, joins, pads and rolls a dim that axes
// split. The sources lie alike and differ in that dim alone; the result lies as they do, with `extent` there.
struct Rearrangement {
  std::vector<TensorType> sources;
  Layout layout;
  int dim = 0;
  std::vector<DimRun> runs;  // no element of a source, nor of the result, is in two
  int64_t extent = 0;

  TensorType ResultType() const;

  bool operator==(const Rearrangement&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const Rearrangement& r) {
    return H::combine(std::move(state), r.sources, r.layout, r.dim, r.runs, r.extent);
  }
};

// One rank's part in it: ranges of the dim of its own pieces. Members of the group are numbered by group rank.
struct LoweredRearrangement {
  struct Part {
    int source = 0;
    int64_t from = 0;  // in this rank's piece of the source, if it holds it
    int64_t to = 0;    // in its piece of the result, if it gets it
    int64_t length = 0;
  };

  AxisList axes;  // of the group; ascending
  Shape result_shape;
  bool fills = false;  // some of the result is in no run
  std::vector<Part> kept;
  std::vector<Part> sent;               // member by member
  std::vector<Part> received;           // likewise
  std::vector<int64_t> send_counts;     // elements, by member
  std::vector<int64_t> receive_counts;  // likewise
  std::vector<int64_t> num_bytes;       // by source: what all ranks of the mesh send of it
  StepTraffic worst;                    // what the worst rank receives
};

// Lowers it for the rank at `coordinate`: an all-to-all of exactly what changes hands, over the axes that split
// the dim.
LoweredRearrangement Lower(const Rearrangement& rearrangement, const DeviceMesh& mesh,
                           absl::Span<const int64_t> coordinate);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_REARRANGEMENT_H_
