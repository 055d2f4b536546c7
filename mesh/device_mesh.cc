#include "mesh/device_mesh.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"

namespace weft {

// Where ranks are their own positions, nothing here grows with their number: a mesh of a million costs what
// one of eight does, until somebody asks for the list.
struct DeviceMesh::Impl {
  std::vector<MeshAxis> axes;
  std::vector<int64_t> strides;  // of each axis, in positions of `ranks`
  int64_t num_ranks = 1;
  bool is_row_major = true;                       // ranks are their own positions
  absl::flat_hash_map<int, int64_t> position_of;  // empty if is_row_major
  mutable std::vector<int> ranks;                 // if is_row_major, made by the first call of Ranks
  mutable std::once_flag ranks_made;

  const std::vector<int>& Ranks() const {
    if (is_row_major) {
      std::call_once(ranks_made, [this] {
        ranks.resize(num_ranks);
        std::iota(ranks.begin(), ranks.end(), 0);
      });
    }
    return ranks;
  }

  int RankAt(int64_t position) const { return is_row_major ? static_cast<int>(position) : ranks[position]; }

  // The position of `rank` in `ranks`, or -1.
  int64_t Position(int rank) const {
    if (is_row_major) return rank >= 0 && rank < num_ranks ? rank : -1;
    const auto found = position_of.find(rank);
    return found == position_of.end() ? -1 : found->second;
  }
};

namespace {

std::string AxesToString(const std::vector<MeshAxis>& axes) {
  return absl::StrJoin(axes, ", ", [](std::string* out, const MeshAxis& axis) {
    absl::StrAppend(out, axis.name, "=", axis.size);
  });
}

bool IsAxisName(absl::string_view name) {
  return !name.empty() && absl::ascii_isalpha(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

// The number of ranks of a mesh of these axes. Ranks are ints, so their number has to be one too.
int64_t CheckAxes(const std::vector<MeshAxis>& axes) {
  WEFT_REQUIRE(axes.size() <= DeviceMesh::kMaxAxes, "a mesh has at most ", DeviceMesh::kMaxAxes,
               " axes, got ", axes.size(), ": ", AxesToString(axes));
  int64_t num_ranks = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    WEFT_REQUIRE(IsAxisName(axes[i].name), "mesh axis name '", axes[i].name,
                 "' is not a letter followed by letters, digits or '_'");
    for (size_t j = 0; j < i; ++j) {
      WEFT_REQUIRE(axes[i].name != axes[j].name, "mesh axis '", axes[i].name, "' is named twice in ",
                   AxesToString(axes));
    }
    WEFT_REQUIRE(axes[i].size >= 1, "mesh axis '", axes[i].name, "' needs a size of at least 1, got ",
                 axes[i].size);
    WEFT_REQUIRE(axes[i].size <= std::numeric_limits<int>::max() / num_ranks, "mesh ", AxesToString(axes),
                 " has more ranks than an int can number");
    num_ranks *= axes[i].size;
  }
  return num_ranks;
}

}  // namespace

DeviceMesh::DeviceMesh() : DeviceMesh(std::vector<MeshAxis>()) {}

DeviceMesh::DeviceMesh(std::vector<MeshAxis> axes) {
  auto impl = std::make_shared<Impl>();
  impl->num_ranks = CheckAxes(axes);
  impl->strides.resize(axes.size());
  int64_t stride = 1;
  for (int axis = static_cast<int>(axes.size()) - 1; axis >= 0; --axis) {
    impl->strides[axis] = stride;
    stride *= axes[axis].size;
  }
  impl->axes = std::move(axes);
  impl_ = std::move(impl);
}

DeviceMesh::DeviceMesh(std::vector<MeshAxis> axes, std::vector<int> ranks) : DeviceMesh(std::move(axes)) {
  WEFT_REQUIRE(static_cast<int64_t>(ranks.size()) == num_ranks(), "mesh ", ToString(), " has ", num_ranks(),
               " ranks, but ", ranks.size(), " were given");
  bool row_major = true;
  for (int64_t i = 0; i < num_ranks(); ++i) row_major = row_major && ranks[i] == i;
  if (row_major) return;
  auto impl = std::make_shared<Impl>();
  impl->axes = impl_->axes;
  impl->strides = impl_->strides;
  impl->num_ranks = impl_->num_ranks;
  impl->is_row_major = false;
  impl->position_of.reserve(ranks.size());
  for (int64_t i = 0; i < num_ranks(); ++i) {
    WEFT_REQUIRE(ranks[i] >= 0, "rank ", ranks[i], " in a mesh is negative");
    WEFT_REQUIRE(impl->position_of.emplace(ranks[i], i).second, "rank ", ranks[i], " stands twice in mesh ",
                 ToString());
  }
  impl->ranks = std::move(ranks);
  impl_ = std::move(impl);
}

DeviceMesh DeviceMesh::Parse(absl::string_view text) {
  std::vector<MeshAxis> axes;
  if (absl::StripAsciiWhitespace(text).empty()) return DeviceMesh();
  for (absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    MeshAxis axis;
    axis.name = std::string(absl::StripAsciiWhitespace(parts.first));
    WEFT_REQUIRE(absl::SimpleAtoi(parts.second, &axis.size), "cannot read mesh \"", text,
                 "\": expected name=size, separated by commas, got '", absl::StripAsciiWhitespace(entry),
                 "'");
    axes.push_back(std::move(axis));
  }
  try {
    return DeviceMesh(std::move(axes));
  } catch (const Error& error) {
    Throw(error.code(), "cannot read mesh \"", text, "\": ", error.message());
  }
}

int DeviceMesh::num_axes() const { return static_cast<int>(impl_->axes.size()); }
int64_t DeviceMesh::num_ranks() const { return impl_->num_ranks; }
const std::vector<MeshAxis>& DeviceMesh::axes() const { return impl_->axes; }
int64_t DeviceMesh::axis_size(int axis) const { return impl_->axes[axis].size; }
const std::string& DeviceMesh::axis_name(int axis) const { return impl_->axes[axis].name; }
const std::vector<int>& DeviceMesh::ranks() const { return impl_->Ranks(); }

int DeviceMesh::FindAxis(absl::string_view name) const {
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (impl_->axes[axis].name == name) return axis;
  }
  return -1;
}

int DeviceMesh::AxisIndex(absl::string_view name) const {
  const int axis = FindAxis(name);
  WEFT_REQUIRE(axis >= 0, "mesh (", ToString(), ") has no axis '", name, "'");
  return axis;
}

std::vector<int64_t> DeviceMesh::CoordinateOf(int rank) const {
  const int64_t position = impl_->Position(rank);
  WEFT_REQUIRE(position >= 0, "rank ", rank, " is not in mesh (", ToString(), ") of ", num_ranks(), " ranks");
  std::vector<int64_t> coordinate(num_axes());
  for (int axis = 0; axis < num_axes(); ++axis) {
    coordinate[axis] = position / impl_->strides[axis] % axis_size(axis);
  }
  return coordinate;
}

bool DeviceMesh::Contains(int rank) const { return impl_->Position(rank) >= 0; }

std::vector<int> DeviceMesh::GroupOf(int rank, absl::Span<const int> axes) const {
  const std::vector<int64_t> coordinate = CoordinateOf(rank);
  int64_t origin = impl_->Position(rank);  // becomes the position of the group's first member
  absl::flat_hash_set<int> seen;
  for (int axis : axes) {
    WEFT_REQUIRE(axis >= 0 && axis < num_axes(), "axis ", axis, " is not one of the ", num_axes(),
                 " axes of mesh (", ToString(), ")");
    WEFT_REQUIRE(seen.insert(axis).second, "axis '", axis_name(axis), "' is listed twice in a group");
    origin -= coordinate[axis] * impl_->strides[axis];
  }
  std::vector<int64_t> positions = {origin};
  for (int axis : axes) {
    std::vector<int64_t> next;
    next.reserve(positions.size() * axis_size(axis));
    for (int64_t position : positions) {
      for (int64_t i = 0; i < axis_size(axis); ++i) next.push_back(position + i * impl_->strides[axis]);
    }
    positions = std::move(next);
  }
  std::vector<int> group;
  group.reserve(positions.size());
  for (int64_t position : positions) group.push_back(impl_->RankAt(position));
  return group;
}

std::string DeviceMesh::ToString() const { return AxesToString(impl_->axes); }

bool DeviceMesh::operator==(const DeviceMesh& other) const {
  if (impl_ == other.impl_) return true;
  if (impl_->axes != other.impl_->axes || impl_->is_row_major != other.impl_->is_row_major) return false;
  return impl_->is_row_major || impl_->ranks == other.impl_->ranks;
}

std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh) { return out << mesh.ToString(); }

}  // namespace weft
