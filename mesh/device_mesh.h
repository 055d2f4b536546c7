#ifndef WEFT_MESH_DEVICE_MESH_H_
#define WEFT_MESH_DEVICE_MESH_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// One named dimension of a mesh.
struct MeshAxis {
  std::string name;
  int64_t size = 1;

  bool operator==(const MeshAxis&) const = default;
};

// A grid of ranks with named axes: the ground that layouts lie on. An immutable value; copies share it, `==`
// compares by pointer first, then by value. The first axis varies slowest: rank = row-major index of its
// coordinate, unless the mesh was given its ranks. A mesh of no axes has one rank: a single device.
//
// A mesh whose ranks are row-major costs the same whatever their number, but for the list that ranks() makes.
//
// An axis name is a letter followed by letters, digits or '_'. At most 8 axes; sizes >= 1.
class DeviceMesh {
 public:
  static constexpr int kMaxAxes = 8;

  DeviceMesh();  // no axes, rank 0
  // Errors: InvalidArgument for a bad or repeated name, a size below 1, too many axes.
  explicit DeviceMesh(std::vector<MeshAxis> axes);
  // The same over these world ranks, row-major.
  // Errors: also for a wrong number of ranks or a repeated one.
  DeviceMesh(std::vector<MeshAxis> axes, std::vector<int> ranks);

  // From text: "dp=2,tp=2"; blanks free; "" is the mesh of no axes.
  // Errors: InvalidArgument with the text.
  static DeviceMesh Parse(absl::string_view text);

  int num_axes() const;
  int64_t num_ranks() const;
  const std::vector<MeshAxis>& axes() const;
  int64_t axis_size(int axis) const;
  const std::string& axis_name(int axis) const;
  // World ranks, row-major by coordinate.
  // Cost:   made at the first call, where they were not given.
  const std::vector<int>& ranks() const;

  // The axis of that name, or -1.
  int FindAxis(absl::string_view name) const;
  // Errors: InvalidArgument naming the axes that exist.
  int AxisIndex(absl::string_view name) const;

  // Index of world rank `rank` along every axis.
  // Errors: InvalidArgument if it is not in the mesh.
  std::vector<int64_t> CoordinateOf(int rank) const;
  bool Contains(int rank) const;

  // World ranks that share `rank`'s coordinates outside `axes`, ordered by their index along `axes`, the
  // first listed varying slowest. `axes` lists distinct axes in any order; none gives the rank alone.
  std::vector<int> GroupOf(int rank, absl::Span<const int> axes) const;

  // "dp=2, tp=2".
  std::string ToString() const;

  bool operator==(const DeviceMesh& other) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_MESH_DEVICE_MESH_H_
