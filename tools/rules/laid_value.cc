#include "tools/rules/laid_value.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "mesh/shard_math.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// The terms of a Partial: how many there are, and what an average divides their sum by.
struct TermGroup {
  ReduceOp op = ReduceOp::kSum;  // sum stands for sum and avg
  int64_t count = 1;
  double divisor = 1;
};

TermGroup TermsOf(const Layout& layout, const DeviceMesh& mesh) {
  TermGroup group;
  for (int axis : layout.PartialAxes()) {
    group.count *= mesh.axis_size(axis);
    if (layout.partial_op(axis) == ReduceOp::kAvg) {
      group.divisor *= static_cast<double>(mesh.axis_size(axis));
    } else {
      group.op = layout.partial_op(axis);
    }
  }
  return group;
}

// The place of a coordinate among those that differ along Partial axes, row-major; 0 if there are none.
int64_t TermIndex(const Layout& layout, const DeviceMesh& mesh, absl::Span<const int64_t> coordinate) {
  int64_t term = 0;
  for (int axis : layout.PartialAxes()) term = term * mesh.axis_size(axis) + coordinate[axis];
  return term;
}

Tensor PieceIn(const Tensor& whole, const ShardBox& box) {
  Tensor piece = whole;
  for (int dim = 0; dim < whole.ndim(); ++dim) piece = piece.Slice(dim, box.offset[dim], box.shape[dim]);
  return piece;
}

// Bits that follow from three numbers (splitmix64's finaliser).
uint64_t Bits(uint64_t seed, uint64_t term, uint64_t element) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + term * 0xbf58476d1ce4e5b9u + element * 0x94d049bb133111ebu;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The terms of one element.
class ElementTerms {
 public:
  ElementTerms(const TermGroup& group, TermForm form, DType dtype, uint64_t seed, uint64_t element)
      : group_(group),
        kept_(form == TermForm::kKept),
        floating_(IsFloating(dtype)),
        is_bool_(dtype == DType::kBool),
        seed_(seed),
        element_(element),
        owner_(static_cast<int64_t>(Bits(seed, 977, element) % static_cast<uint64_t>(group.count))) {}

  double Term(double value, int64_t term) const {
    if (is_bool_) return Bool(value != 0, term) ? 1 : 0;
    switch (group_.op) {
      case ReduceOp::kMax:
      case ReduceOp::kMin:
        return Extremum(value, term);
      case ReduceOp::kProduct:
        return Product(value, term);
      default:
        return Sum(value * group_.divisor, term);
    }
  }

 private:
  uint64_t Noise(int64_t term) const { return Bits(seed_, static_cast<uint64_t>(term), element_); }
  double Quarters(int64_t term) const {
    const double quarters = static_cast<double>(Noise(term) % 28) - 12;
    return floating_ ? quarters / 4 : std::floor(quarters / 4);
  }

  // Sum, avg and max of bools are "or", min and product "and".
  bool Bool(bool value, int64_t term) const {
    const bool is_and = group_.op == ReduceOp::kMin || group_.op == ReduceOp::kProduct;
    if (kept_ && !is_and && group_.op != ReduceOp::kMax) return term == 0 && value;
    if (term == owner_) return value;
    const bool noise = Noise(term) % 2 == 0;
    return is_and ? value || noise : value && noise;
  }

  double Sum(double value, int64_t term) const {
    if (kept_) return term == 0 ? value : 0;
    if (!std::isfinite(value)) return term == owner_ ? value : Quarters(term);
    if (value == 0 && std::signbit(value)) return value;
    const int64_t last = group_.count - 1;
    if (term != last) return Quarters(term);
    for (int64_t i = 0; i < last; ++i) value -= Quarters(i);
    return value;
  }

  double Extremum(double value, int64_t term) const {
    if (term == owner_) return value;
    if (std::isnan(value)) return Quarters(term);
    const bool max = group_.op == ReduceOp::kMax;
    if (std::isinf(value)) return (value > 0) == max ? Quarters(term) : value;
    const double halves = static_cast<double>(1 + Noise(term) % 8) / 2;
    const double away = floating_ ? halves : std::ceil(halves);
    return max ? value - away : value + away;
  }

  double Product(double value, int64_t term) const {
    const int64_t last = group_.count - 1;
    const auto scattered = [&](int64_t i) {
      const uint64_t bits = Noise(i);
      const double size = floating_ ? std::exp2(static_cast<double>(bits / 2 % 3) - 1) : 1;
      return bits % 2 == 0 ? size : -size;
    };
    if (term != last) return scattered(term);
    for (int64_t i = 0; i < last; ++i) value /= scattered(i);
    return value;
  }

  const TermGroup& group_;
  bool kept_;
  bool floating_;
  bool is_bool_;
  uint64_t seed_;
  uint64_t element_;
  int64_t owner_;
};

double Combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kMax:
      return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b);
    case ReduceOp::kMin:
      return std::isnan(a) || std::isnan(b) ? std::nan("") : std::min(a, b);
    case ReduceOp::kProduct:
      return a * b;
    default:
      return a + b;
  }
}

// What an element is before the first term; -0.0 is the neutral element of sums.
double Neutral(ReduceOp op) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  switch (op) {
    case ReduceOp::kMax:
      return -kInf;
    case ReduceOp::kMin:
      return kInf;
    case ReduceOp::kProduct:
      return 1;
    default:
      return -0.0;
  }
}

// Adds a piece to the row-major elements of the whole.
void AddPiece(const Tensor& piece, const ShardBox& box, const TermGroup& group, std::vector<double>& whole) {
  const std::vector<double> values = piece.ToVector<double>();
  const Shape strides = ContiguousStrides(box.global_shape);
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i);
    int64_t at = 0;
    for (int dim = box.shape.ndim(); dim-- > 0;) {
      at += (box.offset[dim] + rest % box.shape[dim]) * strides[dim];
      rest /= box.shape[dim];
    }
    whole[at] = Combine(group.op, whole[at], values[i]);
  }
}

// The first rank of those that hold the same as `coordinate` says.
int64_t FirstReplica(const Layout& layout, const DeviceMesh& mesh, absl::Span<const int64_t> coordinate) {
  int64_t rank = 0;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    rank = rank * mesh.axis_size(axis) + (layout.IsReplicate(axis) ? 0 : coordinate[axis]);
  }
  return rank;
}

}  // namespace

Piece LaidPiece(const Tensor& value, const Layout& layout, const DeviceMesh& mesh,
                absl::Span<const int64_t> coordinate, TermForm form, uint64_t seed) {
  const ShardBox box = LocalBox(value.shape(), layout, mesh, coordinate);
  if (!layout.HasPartial()) return {CloneTensor(PieceIn(value, box), MakeCpuAllocator()), box};
  const TermGroup group = TermsOf(layout, mesh);
  const int64_t index = TermIndex(layout, mesh, coordinate);
  std::vector<double> elements = value.ToVector<double>();
  for (size_t i = 0; i < elements.size(); ++i) {
    const ElementTerms terms(group, form, value.dtype(), seed, i);
    elements[i] = terms.Term(elements[i], index);
  }
  const Tensor term = Tensor::FromValues<double>(value.shape(), elements);
  return {CastTensor(PieceIn(term, box), value.dtype(), MakeCpuAllocator()), box};
}

std::string DenotedDifference(absl::Span<const Tensor> pieces, const Tensor& expected, const Layout& layout,
                              const DeviceMesh& mesh, const Closeness& closeness) {
  const TermGroup group = TermsOf(layout, mesh);
  std::vector<double> whole(expected.num_elements(), Neutral(group.op));
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    const std::vector<int64_t> coordinate = mesh.CoordinateOf(static_cast<int>(rank));
    const ShardBox box = LocalBox(expected.shape(), layout, mesh, coordinate);
    const int64_t first = FirstReplica(layout, mesh, coordinate);
    if (first == static_cast<int64_t>(rank)) {
      AddPiece(pieces[rank], box, group, whole);
      continue;
    }
    const std::string difference = Difference(pieces[rank], pieces[first], {.signed_zeros = true});
    if (!difference.empty())
      return absl::StrCat("ranks ", first, " and ", rank, " should hold the same: ", difference);
  }
  for (double& element : whole) {
    element /= group.divisor;  // the whole sum: a term of integers alone need not divide
    if (expected.dtype() == DType::kBool) element = element != 0 ? 1 : 0;
  }
  return Difference(whole, expected.ToVector<double>(), expected.TypeString(), closeness);
}

}  // namespace weft
