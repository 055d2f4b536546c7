#ifndef WEFT_MESH_DEVICE_MESH_H_
#define WEFT_MESH_DEVICE_MESH_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
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

// A place along a named axis.
struct FixedAxis {
  std::string axis;
  int64_t index = 0;

  bool operator==(const FixedAxis&) const = default;
};

// A grid of ranks with named axes: the ground that layouts lie on. An immutable value; copies share it, `==`
// compares by pointer first, then by value. The first axis varies slowest: rank = row-major index of its
// coordinate, unless the mesh was given its ranks. A mesh of no axes has one rank: a single device.
//
// A mesh whose ranks are row-major costs the same whatever their number, but for the list that ranks() makes.
//
// An axis name is a letter followed by letters, digits or '_'. At most 8 axes; sizes >= 1.
//
// A mesh may be made from another:
//
//   mesh "pp=2, dp=4, tp=2"                 is                            ranks
//   .Slice({{"pp", 1}})                     "dp=4, tp=2 at pp=1"          8 to 15
//   .Split("dp", {{"rep", 2}, {"fs", 2}})   "pp=2, rep=2, fs=2, tp=2"     0 to 15; "dp" is an alias of rep, fs
//   .Flatten({"dp", "tp"}, "all")           "pp=2, dp=4, tp=2"            0 to 15; "all" is an alias of dp, tp
//
// A slice keeps the axis numbers of its root, the mesh that it was cut from: its fixed axes are still there, of
// size 1, but no layout may name them. An alias stands for several axes, in its order, wherever a layout is written
// by names (Layout, Layout::Parse) and in AxesOf; it is no axis, and no part of `==`.
class DeviceMesh {
 public:
  static constexpr int kMaxAxes = 8;

  DeviceMesh();  // no axes, rank 0
  // Errors: InvalidArgument for a bad or repeated name, a size below 1, too many axes.
  explicit DeviceMesh(std::vector<MeshAxis> axes);
  // The same over these world ranks, row-major. Where tensors lie, they ascend (Bind, dtensor/context/mesh_context.h):
  // dp over neighbours of a world of 4 is "tp=2, dp=2" over 0, 1, 2, 3, and not "dp=2, tp=2" over 0, 2, 1, 3.
  // Errors: also for a wrong number of ranks or a repeated one.
  DeviceMesh(std::vector<MeshAxis> axes, std::vector<int> ranks);

  // From text: "dp=2,tp=2"; blanks free; "" is the mesh of no axes.
  // Errors: InvalidArgument with the text.
  static DeviceMesh Parse(absl::string_view text);

  // The ranks at these indices along these axes, which it fixes. Of a slice: a smaller slice of the same root.
  // Errors: InvalidArgument for an axis that is unknown, fixed already or listed twice, or an index outside it.
  DeviceMesh Slice(const std::vector<FixedAxis>& fixed) const;
  // The same mesh, in which `alias` stands for these axes, the first outermost; aliases stand for their own.
  // Errors: InvalidArgument for a bad name, one that an axis or another list has, no axis, or one listed twice.
  DeviceMesh Flatten(const std::vector<std::string>& axes, absl::string_view alias) const;
  // The same ranks with `axis` as the grid of `factors`, the first varying slowest. The axes behind it get higher
  // numbers, and the axis's name becomes an alias of the factors.
  // Errors: InvalidArgument unless the factors' sizes multiply to the axis's, names are new and axes at most 8;
  //         for a slice, whose axis numbers are its root's: split that.
  DeviceMesh Split(absl::string_view axis, const std::vector<MeshAxis>& factors) const;

  bool IsSlice() const;
  // The mesh that this is a slice of; itself, if it is none.
  DeviceMesh Root() const;
  // Whether the axis is fixed, and at which index of the root's.
  bool IsFixed(int axis) const;
  int64_t fixed_index(int axis) const;  // needs IsFixed

  int num_axes() const;
  int64_t num_ranks() const;
  // Fixed ones too, of size 1.
  const std::vector<MeshAxis>& axes() const;
  int64_t axis_size(int axis) const;
  const std::string& axis_name(int axis) const;
  // World ranks, row-major by coordinate.
  // Cost:   made at the first call, where they were not given.
  const std::vector<int>& ranks() const;

  // The axis of that name, or -1; of a slice, not one that is fixed.
  int FindAxis(absl::string_view name) const;
  // Errors: InvalidArgument naming the axes that exist, or that the name is an alias or fixed.
  int AxisIndex(absl::string_view name) const;
  // The axis of that name, or the axes that it is an alias of, outermost first.
  // Errors: as AxisIndex; InvalidArgument for an alias of an axis that is fixed.
  std::vector<int> AxesOf(absl::string_view name) const;

  // Index of world rank `rank` along every axis; 0 along fixed ones.
  // Errors: InvalidArgument if it is not in the mesh.
  std::vector<int64_t> CoordinateOf(int rank) const;
  bool Contains(int rank) const;

  // World ranks that share `rank`'s coordinates outside `axes`, ordered by their index along `axes`, the
  // first listed varying slowest. `axes` lists distinct axes in any order; none gives the rank alone.
  std::vector<int> GroupOf(int rank, absl::Span<const int> axes) const;

  // "dp=2, tp=2"; of a slice "tp=2 at dp=1".
  std::string ToString() const;

  bool operator==(const DeviceMesh& other) const;

 private:
  struct Impl;
  explicit DeviceMesh(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_MESH_DEVICE_MESH_H_
