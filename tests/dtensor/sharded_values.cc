#include "tests/dtensor/sharded_values.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// A fixed noise in [-9, 9].
double Noise(int64_t element, int64_t index) {
  return static_cast<double>((element * 13 + index * 29 + 5) % 19 - 9);
}

double PowerOfTwo(int64_t element, int64_t index) {
  const int64_t noise = static_cast<int64_t>(Noise(element, index));
  return (noise % 2 == 0 ? -1 : 1) * std::exp2(noise % 3);
}

// Term `index` of `count` of a value; `avg_ranks` is what an average divides the sum by.
double TermOf(double value, ReduceOp op, int64_t element, int64_t index, int64_t count, double avg_ranks) {
  const bool last = index == count - 1;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      if (!last) return Noise(element, index);
      value *= avg_ranks;
      for (int64_t i = 0; i + 1 < count; ++i) value -= Noise(element, i);
      return value;
    case ReduceOp::kMin:
      return value + (index == element % count ? 0 : Noise(element, index) + 10);
    case ReduceOp::kMax:
      return value - (index == element % count ? 0 : Noise(element, index) + 10);
    case ReduceOp::kProduct:
      if (!last) return PowerOfTwo(element, index);
      for (int64_t i = 0; i + 1 < count; ++i) value /= PowerOfTwo(element, i);
      return value;
  }
  return NAN;
}

double AverageRanks(const Layout& layout, const DeviceMesh& mesh) {
  double ranks = 1;
  for (int axis : layout.PartialAxes()) {
    if (layout.partial_op(axis) == ReduceOp::kAvg) ranks *= static_cast<double>(mesh.axis_size(axis));
  }
  return ranks;
}

}  // namespace

void OnMesh(absl::string_view mesh_text, const std::function<void(const IntrusivePtr<MeshContext>&)>& body) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) { body(Bind(world, mesh)); });
}

std::string ErrorOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing was thrown";
}

std::vector<Layout> AllLayouts(const DeviceMesh& mesh, int ndim, const std::vector<ReduceOp>& kinds) {
  std::vector<Placement> choices = {Replicate()};
  for (int dim = 0; dim < ndim; ++dim) choices.push_back(Shard(dim));
  for (ReduceOp op : kinds) choices.push_back(Partial(op));
  std::vector<Layout> layouts;
  std::vector<int> order(mesh.num_axes());
  std::iota(order.begin(), order.end(), 0);
  const auto add_all = [&](auto&& self, size_t depth, const Layout& layout) -> void {
    if (depth == order.size()) {
      if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end()) layouts.push_back(layout);
      return;
    }
    for (const Placement& choice : choices) {
      try {
        self(self, depth + 1, layout.With(order[depth], choice));
      } catch (const Error&) {  // kinds that cannot mix
      }
    }
  };
  do {
    add_all(add_all, 0, Layout(ndim, mesh.num_axes()));
  } while (std::next_permutation(order.begin(), order.end()));
  return layouts;
}

Layout RandomLayout(const DeviceMesh& mesh, int ndim, std::mt19937_64& random, bool partial) {
  std::vector<int> order(mesh.num_axes());
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  Layout layout(ndim, mesh.num_axes());
  for (int axis : order) {
    const int choice = static_cast<int>(random() % (ndim + (partial ? 2 : 1))) - 1;
    if (choice == ndim) layout = layout.WithPartial(axis);
    if (choice >= 0 && choice < ndim) layout = layout.WithShard(axis, choice);
  }
  return layout;
}

Tensor FromDoubles(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

Tensor RandomF64(const Shape& shape, uint64_t seed, double low, double high) {
  std::mt19937_64 random(seed);
  std::vector<double> values(shape.num_elements());
  for (double& value : values) value = low + (high - low) * 0x1p-53 * static_cast<double>(random() >> 11);
  return Tensor::FromValues<double>(shape, values);
}

Tensor WholeNumbers(DType dtype, const Shape& shape) {
  std::vector<double> values(shape.num_elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(1 + i * 7 % 31);
  return FromDoubles(dtype, shape, values);
}

Tensor PieceOf(const Tensor& full, const Layout& layout, const DeviceMesh& mesh, int rank) {
  const std::vector<int64_t> coordinate = mesh.CoordinateOf(rank);
  Tensor piece = full;
  for (int dim = 0; dim < full.ndim(); ++dim) {
    for (int axis : layout.ShardAxes(dim)) {
      // Ceil chunks, trailing ones shorter or empty; the next axis cuts what this one leaves.
      const int64_t extent = piece.shape()[dim];
      const int64_t chunk = (extent + mesh.axis_size(axis) - 1) / mesh.axis_size(axis);
      const int64_t begin = std::min(extent, chunk * coordinate[axis]);
      piece = piece.Slice(dim, begin, std::min(extent - begin, chunk));
    }
  }
  const AxisList partial_axes = layout.PartialAxes();
  if (partial_axes.empty()) return CloneTensor(piece, MakeCpuAllocator());
  const std::vector<int> group = mesh.GroupOf(rank, partial_axes);
  const int64_t index = std::find(group.begin(), group.end(), rank) - group.begin();
  std::vector<double> values = piece.ToVector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = TermOf(values[i], layout.partial_op(partial_axes[0]), static_cast<int64_t>(i), index,
                       static_cast<int64_t>(group.size()), AverageRanks(layout, mesh));
  }
  return FromDoubles(full.dtype(), piece.shape(), values);
}

Tensor ReduceTerms(const std::vector<Tensor>& terms, const Layout& layout, const DeviceMesh& mesh) {
  const AxisList partial_axes = layout.PartialAxes();
  const ReduceOp op = partial_axes.empty() ? ReduceOp::kSum : layout.partial_op(partial_axes[0]);
  std::vector<double> result = terms[0].ToVector<double>();
  for (size_t term = 1; term < terms.size(); ++term) {
    const std::vector<double> values = terms[term].ToVector<double>();
    for (size_t i = 0; i < result.size(); ++i) {
      if (op == ReduceOp::kMin) result[i] = std::min(result[i], values[i]);
      if (op == ReduceOp::kMax) result[i] = std::max(result[i], values[i]);
      if (op == ReduceOp::kProduct) result[i] *= values[i];
      if (op == ReduceOp::kSum || op == ReduceOp::kAvg) result[i] += values[i];
    }
  }
  for (double& value : result) value /= AverageRanks(layout, mesh);
  return FromDoubles(terms[0].dtype(), terms[0].shape(), result);
}

DTensor Lay(const IntrusivePtr<MeshContext>& context, const Tensor& full, const Layout& layout) {
  const Tensor piece = PieceOf(full, layout, context->mesh(), context->world().rank());
  return DTensor::FromLocal(context, piece, layout, full.shape());
}

DTensor Lay(const IntrusivePtr<MeshContext>& context, const Tensor& full, absl::string_view layout) {
  return Lay(context, full, Layout::Parse(layout, context->mesh()));
}

Tensor ColumnMajor(const Tensor& tensor) {
  std::vector<int> reversed(tensor.ndim());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  return CloneTensor(tensor.Permute(reversed), MakeCpuAllocator()).Permute(reversed);
}

std::string LayoutText(const DTensor& tensor) { return tensor.layout().ToString(tensor.context()->mesh()); }

std::string LedgerText(MeshContext& context) {
  std::vector<std::string> calls;
  for (const LedgerEntry& entry : context.world().ledger().entries()) {
    const std::string call = absl::StrCat(CollectiveName(entry.kind), " ", entry.group, " ",
                                          PurposeName(static_cast<Purpose>(entry.tag.purpose)));
    calls.insert(calls.end(), static_cast<size_t>(entry.calls), call);
  }
  return absl::StrJoin(calls, ", ");
}

}  // namespace weft
