#include "mesh/device_mesh.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
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

namespace {

// The ranks of a mesh that was given them.
struct GivenRanks {
  std::vector<int> ranks;
  absl::flat_hash_map<int, int64_t> position_of;
};

}  // namespace

// Where ranks are their own positions, nothing here grows with their number: a mesh of a million costs what
// one of eight does, until somebody asks for the list. A position is a place in the root's row-major order; a
// slice has its root's strides, so that it shares all that its root knows.
struct DeviceMesh::Impl {
  std::vector<MeshAxis> axes;    // of a slice, fixed ones with size 1
  std::vector<int64_t> strides;  // of each axis, in positions
  int64_t num_ranks = 1;
  std::shared_ptr<const GivenRanks> given;  // null: ranks are their own positions
  std::map<std::string, std::vector<int>, std::less<>> aliases;
  std::shared_ptr<const Impl> root;  // null: this is no slice
  std::vector<int64_t> fixed;        // of a slice, by axis: the root's index, or -1
  mutable std::vector<int> ranks;    // made by the first call of Ranks, where they are not the given ones
  mutable std::once_flag ranks_made;

  Impl() = default;
  Impl(const Impl& other)  // but for what is made late
      : axes(other.axes),
        strides(other.strides),
        num_ranks(other.num_ranks),
        given(other.given),
        aliases(other.aliases),
        root(other.root),
        fixed(other.fixed) {}

  const std::vector<int>& Ranks() const {
    if (given != nullptr && root == nullptr) return given->ranks;
    std::call_once(ranks_made, [this] {
      ranks = PositionsAlong(FirstPosition());
      for (int& rank : ranks) rank = RankAt(rank);
    });
    return ranks;
  }

  // The positions of all ranks, row-major.
  std::vector<int> PositionsAlong(int64_t first) const {
    std::vector<int> positions = {static_cast<int>(first)};
    positions.reserve(num_ranks);
    for (size_t axis = axes.size(); axis-- > 0;) {
      const size_t block = positions.size();
      for (int64_t i = 1; i < axes[axis].size; ++i) {
        for (size_t j = 0; j < block; ++j) {
          positions.push_back(positions[j] + static_cast<int>(i * strides[axis]));
        }
      }
    }
    return positions;
  }

  int64_t FirstPosition() const {
    int64_t first = 0;
    for (size_t axis = 0; axis < fixed.size(); ++axis)
      first += std::max<int64_t>(fixed[axis], 0) * strides[axis];
    return first;
  }

  int RankAt(int64_t position) const {
    return given == nullptr ? static_cast<int>(position) : given->ranks[position];
  }

  // The position of `rank`, or -1.
  int64_t Position(int rank) const {
    const Impl& whole = root != nullptr ? *root : *this;
    int64_t position = rank >= 0 && rank < whole.num_ranks ? rank : -1;
    if (given != nullptr) {
      const auto found = given->position_of.find(rank);
      position = found == given->position_of.end() ? -1 : found->second;
    }
    for (size_t axis = 0; axis < fixed.size() && position >= 0; ++axis) {
      const int64_t index = position / strides[axis] % whole.axes[axis].size;
      if (fixed[axis] >= 0 && index != fixed[axis]) position = -1;
    }
    return position;
  }

  bool IsFixed(int axis) const { return !fixed.empty() && fixed[axis] >= 0; }

  // "pp=1", of the fixed axes.
  std::string FixedText() const {
    std::string text;
    for (size_t axis = 0; axis < fixed.size(); ++axis) {
      if (fixed[axis] < 0) continue;
      absl::StrAppend(&text, text.empty() ? "" : ", ", axes[axis].name, "=", fixed[axis]);
    }
    return text;
  }

  bool SameGround(const Impl& other) const {
    if (axes != other.axes || (given == nullptr) != (other.given == nullptr)) return false;
    return given == other.given || given->ranks == other.given->ranks;
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
  auto given = std::make_shared<GivenRanks>();
  given->position_of.reserve(ranks.size());
  for (int64_t i = 0; i < num_ranks(); ++i) {
    WEFT_REQUIRE(ranks[i] >= 0, "rank ", ranks[i], " in a mesh is negative");
    WEFT_REQUIRE(given->position_of.emplace(ranks[i], i).second, "rank ", ranks[i], " stands twice in mesh ",
                 ToString());
  }
  given->ranks = std::move(ranks);
  auto impl = std::make_shared<Impl>(*impl_);
  impl->given = std::move(given);
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

DeviceMesh DeviceMesh::Slice(const std::vector<FixedAxis>& fixed) const {
  auto impl = std::make_shared<Impl>(*impl_);
  impl->root = impl_->root != nullptr ? impl_->root : impl_;
  impl->fixed.resize(num_axes(), -1);
  for (const FixedAxis& entry : fixed) {
    const int axis = AxisIndex(entry.axis);
    WEFT_REQUIRE(impl->fixed[axis] < 0, "a slice of mesh (", ToString(), ") fixes axis '", entry.axis,
                 "' twice");
    WEFT_REQUIRE(entry.index >= 0 && entry.index < axis_size(axis), "a slice of mesh (", ToString(), ") at ",
                 entry.axis, "=", entry.index, ": expected an index from 0 to ", axis_size(axis) - 1);
    impl->fixed[axis] = entry.index;
    impl->num_ranks /= impl->axes[axis].size;
    impl->axes[axis].size = 1;
  }
  return fixed.empty() ? *this : DeviceMesh(std::move(impl));
}

DeviceMesh DeviceMesh::Flatten(const std::vector<std::string>& axes, absl::string_view alias) const {
  const auto what = [&] {
    return absl::StrCat("alias '", alias, "' of axes ", absl::StrJoin(axes, ", "), " of mesh (", ToString(),
                        "): ");
  };
  WEFT_REQUIRE(IsAxisName(alias), what(), "its name is not a letter followed by letters, digits or '_'");
  std::vector<int> numbers;
  for (const std::string& name : axes) {
    for (const int axis : AxesOf(name)) {
      WEFT_REQUIRE(std::find(numbers.begin(), numbers.end(), axis) == numbers.end(), what(), "axis '",
                   axis_name(axis), "' is listed twice");
      numbers.push_back(axis);
    }
  }
  WEFT_REQUIRE(!numbers.empty(), what(), "it needs at least one axis");
  for (const MeshAxis& axis : impl_->axes) WEFT_REQUIRE(axis.name != alias, what(), "an axis has that name");
  auto impl = std::make_shared<Impl>(*impl_);
  const auto [known, is_new] = impl->aliases.emplace(std::string(alias), numbers);
  WEFT_REQUIRE(is_new || known->second == numbers, what(), "it stands for other axes already");
  return DeviceMesh(std::move(impl));
}

DeviceMesh DeviceMesh::Split(absl::string_view axis, const std::vector<MeshAxis>& factors) const {
  const int number = AxisIndex(axis);
  const std::string& name = axis_name(number);  // which `axis` may be an alias of
  const auto what = [&] {
    return absl::StrCat("axis '", axis, "' of mesh (", ToString(), ") split into ", AxesToString(factors),
                        ": ");
  };
  WEFT_REQUIRE(!IsSlice(), what(), "a slice has the axes of its root (", Root().ToString(),
               "); split that, then slice it");
  WEFT_REQUIRE(!factors.empty(), what(), "it needs at least one factor");
  std::vector<MeshAxis> axes = impl_->axes;
  axes.erase(axes.begin() + number);
  axes.insert(axes.begin() + number, factors.begin(), factors.end());
  int64_t product = 1;
  for (const MeshAxis& factor : factors) {
    WEFT_REQUIRE(factor.name != name && impl_->aliases.count(factor.name) == 0, what(), "the name '",
                 factor.name, "' is taken");
    WEFT_REQUIRE(factor.size >= 1 && product <= axis_size(number) / factor.size, what(),
                 "the factors' sizes must be at least 1 and multiply to ", axis_size(number));
    product *= factor.size;
  }
  WEFT_REQUIRE(product == axis_size(number), what(), "the factors' sizes multiply to ", product,
               ", expected ", axis_size(number));
  const DeviceMesh split = impl_->given == nullptr ? DeviceMesh(std::move(axes))
                                                   : DeviceMesh(std::move(axes), impl_->given->ranks);
  auto impl = std::make_shared<Impl>(*split.impl_);
  const int num_factors = static_cast<int>(factors.size());
  const auto renumbered = [&](const std::vector<int>& before) {
    std::vector<int> after;
    for (const int old : before) {
      const int first = old > number ? old + num_factors - 1 : old;
      for (int i = 0; i < (old == number ? num_factors : 1); ++i) after.push_back(first + i);
    }
    return after;
  };
  for (const auto& [alias, numbers] : impl_->aliases) impl->aliases[alias] = renumbered(numbers);
  impl->aliases[name] = renumbered({number});
  return DeviceMesh(std::move(impl));
}

bool DeviceMesh::IsSlice() const { return impl_->root != nullptr; }
DeviceMesh DeviceMesh::Root() const { return IsSlice() ? DeviceMesh(impl_->root) : *this; }
bool DeviceMesh::IsFixed(int axis) const { return impl_->IsFixed(axis); }
int64_t DeviceMesh::fixed_index(int axis) const { return impl_->fixed[axis]; }

int DeviceMesh::num_axes() const { return static_cast<int>(impl_->axes.size()); }
int64_t DeviceMesh::num_ranks() const { return impl_->num_ranks; }
const std::vector<MeshAxis>& DeviceMesh::axes() const { return impl_->axes; }
int64_t DeviceMesh::axis_size(int axis) const { return impl_->axes[axis].size; }
const std::string& DeviceMesh::axis_name(int axis) const { return impl_->axes[axis].name; }
const std::vector<int>& DeviceMesh::ranks() const { return impl_->Ranks(); }

int DeviceMesh::FindAxis(absl::string_view name) const {
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (impl_->axes[axis].name == name) return impl_->IsFixed(axis) ? -1 : axis;
  }
  return -1;
}

int DeviceMesh::AxisIndex(absl::string_view name) const {
  const std::vector<int> axes = AxesOf(name);
  WEFT_REQUIRE(axes.size() == 1, "mesh (", ToString(), "): '", name, "' is an alias of ",
               absl::StrJoin(axes, ", ",
                             [this](std::string* out, int axis) { absl::StrAppend(out, axis_name(axis)); }),
               "; expected one axis");
  return axes[0];
}

std::vector<int> DeviceMesh::AxesOf(absl::string_view name) const {
  std::vector<int> axes;
  if (const auto alias = impl_->aliases.find(name); alias != impl_->aliases.end()) {
    axes = alias->second;
  } else {
    for (int axis = 0; axis < num_axes(); ++axis) {
      if (axis_name(axis) == name) axes.push_back(axis);
    }
  }
  WEFT_REQUIRE(!axes.empty(), "mesh (", ToString(), ") has no axis '", name, "'");
  for (const int axis : axes) {
    WEFT_REQUIRE(!IsFixed(axis), "mesh (", ToString(), ") has no axis '", name, "': '", axis_name(axis),
                 "' is fixed in this slice of mesh (", Root().ToString(), ")");
  }
  return axes;
}

std::vector<int64_t> DeviceMesh::CoordinateOf(int rank) const {
  const int64_t position = impl_->Position(rank);
  WEFT_REQUIRE(position >= 0, "rank ", rank, " is not in mesh (", ToString(), ") of ", num_ranks(), " ranks");
  std::vector<int64_t> coordinate(num_axes());
  for (int axis = 0; axis < num_axes(); ++axis) {
    coordinate[axis] = IsFixed(axis) ? 0 : position / impl_->strides[axis] % axis_size(axis);
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

std::string DeviceMesh::ToString() const {
  if (!IsSlice()) return AxesToString(impl_->axes);
  std::vector<MeshAxis> remaining;
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (!IsFixed(axis)) remaining.push_back(impl_->axes[axis]);
  }
  return absl::StrCat(AxesToString(remaining), remaining.empty() ? "at " : " at ", impl_->FixedText());
}

bool DeviceMesh::operator==(const DeviceMesh& other) const {
  const Impl& a = *impl_;
  const Impl& b = *other.impl_;
  if (&a == &b) return true;
  if (a.fixed != b.fixed) return false;
  return a.root == nullptr || b.root == nullptr ? a.root == b.root && a.SameGround(b)
                                                : a.root == b.root || a.root->SameGround(*b.root);
}

std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh) { return out << mesh.ToString(); }

}  // namespace weft
