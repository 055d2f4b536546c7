#include "mesh/layout.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

bool CanMix(ReduceOp a, ReduceOp b) {
  const auto is_linear = [](ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAvg; };
  return a == b || (is_linear(a) && is_linear(b));
}

std::string AxisText(int axis, const DeviceMesh* mesh) {
  if (mesh != nullptr && axis < mesh->num_axes()) return mesh->axis_name(axis);
  return absl::StrCat("a", axis);
}

void CheckAxis(const Layout& layout, int axis) {
  WEFT_REQUIRE(axis >= 0 && axis < layout.num_axes(), "axis ", axis, " is out of range for a layout over ",
               layout.num_axes(), " mesh axes");
}

int ResolveDim(int dim, int ndim) {
  WEFT_REQUIRE(dim >= -ndim && dim < ndim, "Shard(", dim, ") is out of range for a tensor of ", ndim,
               " dims");
  return dim < 0 ? dim + ndim : dim;
}

std::string PartialText(const Layout& layout, const DeviceMesh* mesh) {
  const AxisList axes = layout.PartialAxes();
  const ReduceOp first = layout.partial_op(axes.front());
  const bool one_kind =
      std::all_of(axes.begin(), axes.end(), [&](int axis) { return layout.partial_op(axis) == first; });
  std::string text = absl::StrJoin(axes, ",", [&](std::string* out, int axis) {
    absl::StrAppend(out, AxisText(axis, mesh));
    if (!one_kind) absl::StrAppend(out, ":", ReduceOpName(layout.partial_op(axis)));
  });
  if (one_kind && first != ReduceOp::kSum) absl::StrAppend(&text, ":", ReduceOpName(first));
  return absl::StrCat("P{", text, "}");
}

std::string LayoutText(const Layout& layout, const DeviceMesh* mesh) {
  std::string text = "[";
  for (int dim = 0; dim < layout.ndim(); ++dim) {
    const AxisList axes = layout.ShardAxes(dim);
    absl::StrAppend(&text, dim == 0 ? "" : ", ", axes.empty() ? "-" : "",
                    absl::StrJoin(axes, ".", [&](std::string* out, int axis) {
                      absl::StrAppend(out, AxisText(axis, mesh));
                    }));
  }
  absl::StrAppend(&text, "]");
  if (layout.HasPartial()) absl::StrAppend(&text, " ", PartialText(layout, mesh));
  return text;
}

// layout := '[' [ dim { ',' dim } ] ']' [ 'P' '{' term { ',' term } '}' ]
// dim := '-' | axis { '.' axis }        term := axis [ ':' kind ]
class LayoutParser {
 public:
  LayoutParser(absl::string_view text, const DeviceMesh& mesh) : text_(text), mesh_(mesh) {}

  Layout Run() {
    ReadDims();
    Layout layout(static_cast<int>(dims_.size()), mesh_.num_axes());
    for (size_t dim = 0; dim < dims_.size(); ++dim) {
      for (int axis : dims_[dim]) layout = layout.WithShard(axis, static_cast<int>(dim));
    }
    if (Accept('P')) layout = ReadPartials(layout);
    SkipBlanks();
    if (position_ < text_.size()) Fail(layout.HasPartial() ? "the end" : "P{...} or the end");
    return layout;
  }

 private:
  void ReadDims() {
    Expect('[', "'['");
    if (Accept(']')) return;
    do {
      if (dims_.size() == Layout::kMaxDims) Fail(absl::StrCat("at most ", Layout::kMaxDims, " dims"));
      dims_.emplace_back();
      if (Accept('-')) continue;
      do {
        for (const int axis : ReadAxes()) dims_.back().push_back(axis);
      } while (Accept('.'));
    } while (Accept(','));
    Expect(']', "',' or ']'");
  }

  struct Term {
    AxisList axes = {};
    bool has_kind = false;
    ReduceOp op = ReduceOp::kSum;
    size_t position = 0;  // of the kind, or of the end of the name
  };

  // One kind, after the last term, stands for all of them; else a term without one is a sum.
  Layout ReadPartials(Layout layout) {
    Expect('{', "'{'");
    absl::InlinedVector<Term, 4> terms;
    do {
      Term term = {.axes = ReadAxes()};
      term.has_kind = Accept(':');
      SkipBlanks();
      term.position = position_;
      if (term.has_kind) term.op = ReadKind();
      terms.push_back(term);
    } while (Accept(','));
    Expect('}', "',' or '}'");
    const bool one_for_all =
        std::none_of(terms.begin(), terms.end() - 1, [](const Term& term) { return term.has_kind; });
    for (Term& term : terms) {
      if (one_for_all) term.op = terms.back().op;
      if (!CanMix(term.op, terms.front().op)) {
        FailAt(term.position, absl::StrCat("a kind that mixes with ", ReduceOpName(terms.front().op),
                                           " (only sum and avg mix; unsaid is sum)"));
      }
      for (const int axis : term.axes) layout = layout.WithPartial(axis, term.op);
    }
    return layout;
  }

  // One axis, or those of an alias.
  AxisList ReadAxes() {
    SkipBlanks();
    const size_t begin = position_;
    AxisList axes;
    try {
      const std::vector<int> named = mesh_.AxesOf(ReadWord());
      axes.assign(named.begin(), named.end());
    } catch (const Error&) {
      FailAt(begin, absl::StrCat("an axis of mesh (", mesh_.ToString(), ")"));
    }
    for (const int axis : axes) {
      if (used_[axis]) {
        FailAt(begin,
               absl::StrCat("each axis at most once, but '", mesh_.axis_name(axis), "' stands before"));
      }
      used_[axis] = true;
    }
    return axes;
  }

  ReduceOp ReadKind() {
    const size_t begin = position_;
    const absl::string_view name = ReadWord();
    for (ReduceOp op : kAllReduceOps) {
      if (ReduceOpName(op) == name) return op;
    }
    FailAt(begin, "one of sum, avg, min, max, product");
  }

  absl::string_view ReadWord() {
    const size_t begin = position_;
    while (position_ < text_.size() && (absl::ascii_isalnum(text_[position_]) || text_[position_] == '_')) {
      ++position_;
    }
    return text_.substr(begin, position_ - begin);
  }

  void SkipBlanks() {
    while (position_ < text_.size() && absl::ascii_isspace(text_[position_])) ++position_;
  }

  bool Accept(char symbol) {
    SkipBlanks();
    if (position_ == text_.size() || text_[position_] != symbol) return false;
    ++position_;
    return true;
  }

  void Expect(char symbol, absl::string_view what) {
    if (!Accept(symbol)) Fail(what);
  }

  [[noreturn]] void Fail(absl::string_view expected) const { FailAt(position_, expected); }

  [[noreturn]] void FailAt(size_t position, absl::string_view expected) const {
    ThrowInvalidArgument("cannot read layout \"", text_, "\" at position ", position, ": expected ", expected,
                         position < text_.size() ? absl::StrCat(", got '", text_.substr(position), "'")
                                                 : std::string(", got the end"));
  }

  absl::string_view text_;
  const DeviceMesh& mesh_;
  size_t position_ = 0;
  absl::InlinedVector<AxisList, 4> dims_;
  std::array<bool, DeviceMesh::kMaxAxes> used_ = {};
};

}  // namespace

Layout::Layout(int ndim, int num_axes) {
  WEFT_REQUIRE(ndim >= 0 && ndim <= kMaxDims, "a layout has 0 to ", kMaxDims, " dims, got ", ndim);
  WEFT_REQUIRE(num_axes >= 0 && num_axes <= DeviceMesh::kMaxAxes, "a layout has 0 to ", DeviceMesh::kMaxAxes,
               " mesh axes, got ", num_axes);
  ndim_ = static_cast<uint8_t>(ndim);
  num_axes_ = static_cast<uint8_t>(num_axes);
}

Layout::Layout(const DeviceMesh& mesh, int ndim, const std::vector<AxisPlacement>& placements)
    : Layout(ndim, mesh.num_axes()) {
  std::array<bool, DeviceMesh::kMaxAxes> used = {};
  for (const AxisPlacement& entry : placements) {
    for (const int axis : mesh.AxesOf(entry.axis)) {
      WEFT_REQUIRE(!used[axis], "mesh axis '", mesh.axis_name(axis), "' has two placements in one layout");
      used[axis] = true;
      *this = With(axis, entry.placement);
    }
  }
}

Placement Layout::placement(int axis) const {
  if (IsShard(axis)) return Shard(shard_dim(axis));
  if (IsPartial(axis)) return Partial(partial_op(axis));
  return Replicate();
}

AxisList Layout::ShardAxes(int dim) const {
  std::array<int, DeviceMesh::kMaxAxes> by_position;
  int count = 0;
  for (int axis = 0; axis < num_axes_; ++axis) {
    if (!IsShard(axis) || dim_of(axis) != dim) continue;
    by_position[order_of(axis)] = axis;
    ++count;
  }
  return AxisList(by_position.begin(), by_position.begin() + count);
}

AxisList Layout::PartialAxes() const {
  AxisList axes;
  for (int axis = 0; axis < num_axes_; ++axis) {
    if (IsPartial(axis)) axes.push_back(axis);
  }
  return axes;
}

Layout Layout::WithReplicate(int axis) const {
  CheckAxis(*this, axis);
  Layout result = *this;
  if (IsShard(axis)) {
    for (int other = 0; other < num_axes_; ++other) {
      if (!IsShard(other) || dim_of(other) != dim_of(axis) || order_of(other) < order_of(axis)) continue;
      if (other != axis) result.Set(other, kShard, dim_of(other), order_of(other) - 1);
    }
  }
  result.Set(axis, kReplicate, 0, 0);
  return result;
}

Layout Layout::WithShard(int axis, int dim) const {
  Layout result = WithReplicate(axis);
  const int resolved = ResolveDim(dim, ndim_);
  int position = 0;
  for (int other = 0; other < num_axes_; ++other) {
    position += result.IsShard(other) && result.dim_of(other) == resolved;
  }
  result.Set(axis, kShard, resolved, position);
  return result;
}

Layout Layout::WithPartial(int axis, ReduceOp op) const {
  Layout result = WithReplicate(axis);
  for (int other = 0; other < num_axes_; ++other) {
    WEFT_REQUIRE(!result.IsPartial(other) || CanMix(op, result.partial_op(other)), "Partial(",
                 ReduceOpName(op), ") cannot join ", result.ToString(),
                 ": one tensor has one partial kind; only sum and avg mix");
  }
  result.Set(axis, kPartial, static_cast<int>(op), 0);
  return result;
}

Layout Layout::With(int axis, const Placement& placement) const {
  if (const Shard* shard = std::get_if<Shard>(&placement)) return WithShard(axis, shard->dim);
  if (const Partial* partial = std::get_if<Partial>(&placement)) return WithPartial(axis, partial->op);
  return WithReplicate(axis);
}

Layout Layout::PlacedAlong(int axis, const Placement& placement) const {
  const Layout placed = With(axis, placement);
  return placed.placement(axis) == this->placement(axis) ? *this : placed;
}

std::string Layout::ToString(const DeviceMesh& mesh) const { return LayoutText(*this, &mesh); }
std::string Layout::ToString() const { return LayoutText(*this, nullptr); }

Layout Layout::Parse(absl::string_view text, const DeviceMesh& mesh) {
  return LayoutParser(text, mesh).Run();
}

std::ostream& operator<<(std::ostream& out, const Layout& layout) { return out << layout.ToString(); }

}  // namespace weft
