#include "dtensor/redistribution/agreement.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "mesh/shard_math.h"
#include "runtime/base/error.h"
#include "runtime/comm/gather_texts.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

using Numbers = std::vector<int64_t>;

CommOptions MetricOptions(MeshContext& context) {
  return {.tag = {static_cast<uint8_t>(Purpose::kMetric), context.state().path_id()}};
}

// Every rank's numbers, as many from each, in the order of mesh.ranks().
std::vector<Numbers> GatherNumbers(MeshContext& context, const Numbers& mine) {
  Communicator& group = AllRanks(context);
  const int64_t count = static_cast<int64_t>(mine.size());
  const Tensor all = Tensor::Empty(context.allocator(), DType::kI64, {group.size() * count});
  const Numbers counts(group.size(), count);
  group
      .AllGather(Tensor::FromValues<int64_t>({count}, mine, context.allocator()), all, counts,
                 MetricOptions(context))
      .Wait();
  const Numbers flat = all.ToVector<int64_t>();
  std::vector<Numbers> by_rank;
  for (auto begin = flat.begin(); begin != flat.end(); begin += count)
    by_rank.emplace_back(begin, begin + count);
  return by_rank;
}

// 64 bits of all bytes, the same in every process. Each word is mixed in by a multiplication by an odd number
// and a shift, both of which lose nothing, so that one changed word changes the hash.
uint64_t HashOfBytes(const Tensor& tensor) {
  const Tensor dense = OnHost(tensor);
  const char* bytes = static_cast<const char*>(dense.data());
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (int64_t left = dense.num_bytes(); left > 0; left -= 8, bytes += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, static_cast<size_t>(std::min<int64_t>(left, 8)));
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

std::string RankText(const DeviceMesh& slice, int rank) {
  const DeviceMesh mesh = slice.Root();
  const std::vector<int64_t> coordinate = mesh.CoordinateOf(rank);
  std::string text = absl::StrCat("rank ", rank);
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    absl::StrAppend(&text, axis == 0 ? " (" : ", ", mesh.axis_name(axis), "=", coordinate[axis]);
  }
  return mesh.num_axes() == 0 ? text : text + ")";
}

// A list for an error, cut short where a large mesh would fill pages.
class Findings {
 public:
  void Add(const std::string& finding) {
    if (++count_ <= 8) absl::StrAppend(&text_, count_ == 1 ? "" : "; ", finding);
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    return count_ <= 8 ? text_ : absl::StrCat(text_, "; and ", count_ - 8, " more");
  }

 private:
  int count_ = 0;
  std::string text_;
};

// A figure of a machine and what it is called.
struct Figure {
  std::string name;
  double value = 0;
};

std::vector<Figure> FiguresOf(const MeshContext& context) {
  std::vector<Figure> figures;
  for (int axis = 0; axis < context.mesh().num_axes(); ++axis) {
    const AxisCost& cost = context.cost_model().axis(axis);
    const std::string& name = context.mesh().axis_name(axis);
    figures.push_back({absl::StrCat("axes.", name, ".alpha"), cost.alpha});
    figures.push_back({absl::StrCat("axes.", name, ".beta"), cost.beta});
  }
  figures.push_back({"flops", context.machine().flops});
  figures.push_back({"bytes_per_second", context.machine().bytes_per_second});
  return figures;
}

}  // namespace

Communicator& AllRanks(MeshContext& context) {
  AxisList axes;
  for (int axis = 0; axis < context.mesh().num_axes(); ++axis) {
    if (context.mesh().axis_size(axis) > 1) axes.push_back(axis);
  }
  return context.Group(axes);
}

std::vector<std::string> GatherTexts(MeshContext& context, const std::string& mine) {
  return AllGatherTexts(AllRanks(context), mine, context.allocator(), MetricOptions(context));
}

void CheckSameMachine(MeshContext& context, absl::string_view what) {
  const DeviceMesh& mesh = context.mesh();
  if (mesh.num_ranks() == 1 || context.allocator()->device().type == DeviceType::kMeta) return;
  const std::vector<Figure> figures = FiguresOf(context);
  Numbers mine;
  for (const Figure& figure : figures) mine.push_back(std::bit_cast<int64_t>(figure.value));
  const std::vector<Numbers> theirs = GatherNumbers(context, mine);
  for (int i = 1; i < mesh.num_ranks(); ++i) {
    for (size_t field = 0; field < figures.size(); ++field) {
      WEFT_REQUIRE(theirs[i][field] == theirs[0][field], what,
                   ": the ranks' machines differ: ", figures[field].name, " is ",
                   std::bit_cast<double>(theirs[i][field]), " on ", RankText(mesh, mesh.ranks()[i]), " and ",
                   std::bit_cast<double>(theirs[0][field]), " on ", RankText(mesh, mesh.ranks()[0]),
                   "; give every rank's Bind the same Machine");
    }
  }
}

void CheckReplicas(MeshContext& context, const Tensor& local, const TensorType& type, const Layout& layout,
                   absl::string_view what) {
  if (local.device().type == DeviceType::kMeta) return;
  const DeviceMesh& mesh = context.mesh();
  const std::vector<Numbers> hashes = GatherNumbers(context, {static_cast<int64_t>(HashOfBytes(local))});
  std::map<std::vector<int64_t>, int> first_of_piece;  // by the coordinate, 0 along Replicate axes
  Findings findings;
  for (int i = 0; i < mesh.num_ranks(); ++i) {
    const int rank = mesh.ranks()[i];
    std::vector<int64_t> piece = mesh.CoordinateOf(rank);
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      if (layout.IsReplicate(axis)) piece[axis] = 0;
    }
    const int first = first_of_piece.try_emplace(piece, i).first->second;
    if (hashes[i] == hashes[first]) continue;
    findings.Add(absl::StrCat(RankText(mesh, rank), " differs from ", RankText(mesh, mesh.ranks()[first])));
  }
  WEFT_REQUIRE(findings.empty(), what, ": ", type.ToString(), " ", layout.ToString(mesh),
               " says that replicas are equal, but ", findings.text());
}

TensorType AgreeOnType(MeshContext& context, const Tensor& local, const Layout& layout,
                       absl::string_view what) {
  const DeviceMesh& mesh = context.mesh();
  Numbers mine = {static_cast<int64_t>(local.dtype()), local.ndim()};
  mine.insert(mine.end(), local.shape().begin(), local.shape().end());
  mine.resize(2 + Shape::kMaxDims);
  const std::vector<Numbers> theirs = GatherNumbers(context, mine);
  const auto shape_of = [&](int i) {
    Shape shape;
    for (int64_t dim = 0; dim < theirs[i][1]; ++dim) shape.push_back(theirs[i][2 + dim]);
    return shape;
  };
  const auto type_text = [&](int i) { return TypeString(static_cast<DType>(theirs[i][0]), shape_of(i)); };
  Findings findings;
  for (int i = 0; i < mesh.num_ranks(); ++i) {
    if (theirs[i][0] == theirs[0][0] && theirs[i][1] == layout.ndim()) continue;
    findings.Add(absl::StrCat(RankText(mesh, mesh.ranks()[i]), " has ", type_text(i)));
  }
  WEFT_REQUIRE(findings.empty(), what, ": expected pieces of one dtype and ", layout.ndim(),
               " dims for layout ", layout.ToString(mesh), ", but ", findings.text(), " where rank ",
               mesh.ranks()[0], " has ", type_text(0));
  TensorType type = {local.dtype(), shape_of(0)};
  for (int dim = 0; dim < layout.ndim(); ++dim) {
    // The pieces along the dim: of those ranks that stand at 0 along every axis that does not split it.
    int64_t extent = 0;
    for (int i = 0; i < mesh.num_ranks(); ++i) {
      const std::vector<int64_t> coordinate = mesh.CoordinateOf(mesh.ranks()[i]);
      bool counts = true;
      for (int axis = 0; axis < mesh.num_axes(); ++axis) {
        const bool splits = layout.IsShard(axis) && layout.shard_dim(axis) == dim;
        counts = counts && (splits || coordinate[axis] == 0);
      }
      if (counts) extent += theirs[i][2 + dim];
    }
    type.shape[dim] = extent;
  }
  for (int i = 0; i < mesh.num_ranks(); ++i) {
    const int rank = mesh.ranks()[i];
    const Shape rule = LocalBox(type.shape, layout, mesh, mesh.CoordinateOf(rank)).shape;
    if (rule == shape_of(i)) continue;
    findings.Add(absl::StrCat(RankText(mesh, rank), " has ", shape_of(i).ToString(), ", the rule gives it ",
                              rule.ToString()));
  }
  WEFT_REQUIRE(findings.empty(), what, ": the pieces add up to ", type.ToString(), ", which ",
               layout.ToString(mesh), " cuts in ceil chunks, but ", findings.text());
  return type;
}

}  // namespace weft
