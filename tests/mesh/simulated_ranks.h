#ifndef WEFT_TESTS_MESH_SIMULATED_RANKS_H_
#define WEFT_TESTS_MESH_SIMULATED_RANKS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "mesh/redistribution/redistribution.h"
#include "runtime/tensor/shape.h"

namespace weft {

// The elements that one rank holds: global row-major index to value, or to the rank's term of it.
using Elements = std::map<int64_t, double>;

// All the ranks of a mesh, each with its elements of one small tensor, running redistribution steps the long
// way round: on sets of elements, with neither boxes nor shard math. The oracle for plans and their byte
// counts.
class SimulatedRanks {
 public:
  // Every rank holds what `layout` gives it; the terms of Partial axes differ, in sign too.
  SimulatedRanks(const DeviceMesh& mesh, const Shape& shape, const Layout& layout);

  // Runs one step. Returns how many elements the members lacked: terms of theirs to reduce, or elements to
  // hold.
  int64_t Run(const RedistributionStep& step);

  // "" if every rank holds exactly what LocalBox says for `layout`, and the values, reduced over the partial
  // axes, are the tensor's; else what is wrong.
  std::string Check(const Layout& layout) const;

 private:
  double Value(int64_t element) const { return static_cast<double>(element * 7 % 31 + 1); }
  double Term(int64_t element, const Layout& layout, const AxisList& axes, int64_t index,
              int64_t count) const;
  // Of `elements`, those that `layout` gives to `rank`.
  Elements Held(Elements elements, const Layout& layout, int rank) const;
  // The elements whose coordinate along `dim` lies in chunk `index` of the coordinates that are there.
  Elements Chunk(const Elements& elements, int dim, int64_t count, int64_t index) const;
  Elements Union(const std::vector<int>& group) const;
  Elements Reduce(const std::vector<int>& group, ReduceOp op) const;

  DeviceMesh mesh_;
  Shape shape_;
  Shape strides_;
  std::vector<Elements> ranks_;
};

}  // namespace weft

#endif  // WEFT_TESTS_MESH_SIMULATED_RANKS_H_
