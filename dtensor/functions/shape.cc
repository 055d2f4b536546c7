#include "dtensor/functions/shape.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "dtensor/call/execute.h"
#include "dtensor/dispatch.h"
#include "dtensor/functions/autocast.h"
#include "dtensor/functions/creation.h"
#include "dtensor/functions/rearrange.h"
#include "mesh/view_algebra.h"
#include "ops/elementwise/triangle.h"
#include "ops/reduce/reduce.h"
#include "ops/shape/concat.h"
#include "ops/shape/flip_roll.h"
#include "ops/shape/pad.h"
#include "ops/shape/permute.h"
#include "ops/shape/reshape.h"
#include "ops/shape/slice.h"
#include "ops/shape/split.h"
#include "ops/shape/stack.h"
#include "ops/sharding/propagate.h"

namespace weft {
namespace {

// `shape` with its -1, if it has one, as what is left of `num_elements`.
// Errors: InvalidArgument.
Shape Resolve(absl::string_view what, const Shape& shape, int64_t num_elements) {
  int unknown = -1;
  int64_t known = 1;
  bool overflows = false;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    WEFT_REQUIRE(shape[dim] >= 0 || (shape[dim] == -1 && unknown < 0), what,
                 ": expected extents, at most one of them -1, got ", shape.ToString());
    if (shape[dim] < 0) {
      unknown = dim;
    } else {
      overflows |= __builtin_mul_overflow(known, shape[dim], &known);
    }
  }
  if (unknown < 0) return shape;
  WEFT_REQUIRE(!overflows && known > 0 && num_elements % known == 0, what, ": ", num_elements,
               " elements leave no extent for the -1 of ", shape.ToString());
  Shape resolved = shape;
  resolved[unknown] = num_elements / known;
  return resolved;
}

// The shape without dims [begin, end), with `dims` in their place.
Shape WithDims(const Shape& shape, int begin, int end, const Shape& dims) {
  Shape result;
  for (int dim = 0; dim < begin; ++dim) result.push_back(shape[dim]);
  for (int64_t extent : dims) result.push_back(extent);
  for (int dim = end; dim < shape.ndim(); ++dim) result.push_back(shape[dim]);
  return result;
}

// Errors: always; the layout from which Reshape would take the view is the nearest that it finds.
[[noreturn]] void ThrowWouldMove(const DTensor& x, const Shape& shape) {
  const MeshContext& context = *x.context();
  const DeviceMesh& mesh = context.mesh();
  const ReshapeAttributes attributes = {shape};
  const TensorType from = x.type();
  const TensorType to = {x.dtype(), shape};
  const Strategy strategy = Propagate({.op = &kReshape,
                                       .attributes = &attributes,
                                       .operand_types = absl::MakeConstSpan(&from, 1),
                                       .operand_layouts = absl::MakeConstSpan(&x.layout(), 1),
                                       .output_types = absl::MakeConstSpan(&to, 1)},
                                      mesh, context.cost_model());
  const bool legal = ViewLayout(x.shape(), x.layout(), shape, mesh).has_value();
  ThrowInvalidArgument("View: ", x.ToString(), " on mesh (", mesh.ToString(), ") cannot be seen as ",
                       shape.ToString(), " where it lies: ",
                       legal ? "only sums and averages stay Partial"
                             : absl::StrCat("its pieces are no boxes there, but they are of ",
                                            UnmergedShape(x.shape(), x.layout(), shape, mesh).ToString()),
                       ". The nearest layout for it is ", strategy.operands[0].ToString(mesh),
                       "; Reshape redistributes to that by itself");
}

}  // namespace

DTensor Reshape(const DTensor& x, const Shape& shape) {
  return Call(kReshape, {x}, {.shape = Resolve("Reshape", shape, x.shape().num_elements())});
}

DTensor View(const DTensor& x, const Shape& shape) {
  const Shape to = Resolve("View", shape, x.shape().num_elements());
  WEFT_REQUIRE(to.num_elements() == x.shape().num_elements(), "View: ", x.ToString(), " has ",
               x.shape().num_elements(), " elements, so it cannot become ", to.ToString());
  const Layout& layout = x.layout();
  const AxisList partial = layout.PartialAxes();
  const bool sums = std::all_of(partial.begin(), partial.end(), [&](int axis) {
    return layout.partial_op(axis) == ReduceOp::kSum || layout.partial_op(axis) == ReduceOp::kAvg;
  });
  if (!sums || !ViewLayout(x.shape(), layout, to, x.context()->mesh())) ThrowWouldMove(x, to);
  return Call(kReshape, {x}, {.shape = to});
}

DTensor Flatten(const DTensor& x, int start, int end) {
  if (x.ndim() == 0) return Reshape(x, {1});
  const int first = NormalizeDim(start, x.ndim(), "Flatten");
  const int last = NormalizeDim(end, x.ndim(), "Flatten");
  WEFT_REQUIRE(first <= last, "Flatten: dim ", start, " of ", x.ToString(), " does not come before ", end);
  int64_t extent = 1;
  for (int dim = first; dim <= last; ++dim) extent *= x.shape()[dim];
  return Reshape(x, WithDims(x.shape(), first, last + 1, {extent}));
}

DTensor Unflatten(const DTensor& x, int dim, const Shape& sizes) {
  const int at = NormalizeDim(dim, x.ndim(), "Unflatten");
  const Shape resolved = Resolve("Unflatten", sizes, x.shape()[at]);
  WEFT_REQUIRE(resolved.num_elements() == x.shape()[at], "Unflatten: dim ", at, " of ", x.ToString(),
               " does not fall into ", sizes.ToString());
  return Reshape(x, WithDims(x.shape(), at, at + 1, resolved));
}

DTensor Squeeze(const DTensor& x) {
  Shape shape;
  for (int64_t extent : x.shape()) {
    if (extent != 1) shape.push_back(extent);
  }
  return shape == x.shape() ? x : Reshape(x, shape);
}

DTensor Squeeze(const DTensor& x, int dim) {
  const int at = NormalizeDim(dim, x.ndim(), "Squeeze");
  return x.shape()[at] == 1 ? Reshape(x, WithDims(x.shape(), at, at + 1, {})) : x;
}

DTensor Unsqueeze(const DTensor& x, int dim) {
  const int at = NormalizeDim(dim, x.ndim() + 1, "Unsqueeze");
  return Reshape(x, WithDims(x.shape(), at, at, {1}));
}

DTensor Expand(const DTensor& x, const Shape& shape) {
  const int leading = shape.ndim() - x.ndim();
  WEFT_REQUIRE(leading >= 0, "Expand: ", x.ToString(), " has more dims than ", shape.ToString());
  Shape to = shape;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    if (shape[dim] == -1 && dim >= leading) to[dim] = x.shape()[dim - leading];
    WEFT_REQUIRE(to[dim] >= 0, "Expand: expected extents, or -1 for one of x's dims, got ", shape.ToString());
  }
  if (to == x.shape()) return x;
  return Call(kBroadcastTo, {x}, {.shape = to, .missing_dims = AllDims(leading)});
}

DTensor Permute(const DTensor& x, const std::vector<int>& order) {
  PermuteAttributes attributes;
  for (int dim : order) attributes.order.push_back(NormalizeDim(dim, x.ndim(), "Permute"));
  return Call(kPermute, {x}, attributes);
}

DTensor Transpose(const DTensor& x, int dim_a, int dim_b) {
  std::vector<int> order(x.ndim());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[NormalizeDim(dim_a, x.ndim(), "Transpose")],
            order[NormalizeDim(dim_b, x.ndim(), "Transpose")]);
  return Permute(x, order);
}

DTensor Slice(const DTensor& x, int dim, int64_t start, int64_t length) {
  const SliceAttributes attributes = {
      .dim = NormalizeDim(dim, x.ndim(), "Slice"), .start = start, .length = length};
  const int64_t extent = x.shape()[attributes.dim];
  // All of it is a view; what lies outside is an error, which the op names.
  const bool inside = start >= 0 && length >= 0 && length < extent && start <= extent - length;
  if (!inside || !CanRearrange(x, attributes.dim, length)) return Call(kSlice, {x}, attributes);
  const DimRun run = {.from = start, .length = length};
  return Rearrange("slice", {x}, attributes.dim, {run}, length);
}

std::vector<DTensor> Split(const DTensor& x, const std::vector<int64_t>& sizes, int dim) {
  const SplitAttributes attributes = {.dim = NormalizeDim(dim, x.ndim(), "Split"),
                                      .sizes = {sizes.begin(), sizes.end()}};
  if (!IsSplitAlong(x, attributes.dim)) {
    const DTensors parts = CallAll(kSplit, {x}, attributes);
    return {parts.begin(), parts.end()};
  }
  kSplit.Infer({x.type()}, &attributes);  // for its errors
  std::vector<DTensor> parts;
  int64_t start = 0;
  for (int64_t size : sizes) {
    parts.push_back(Slice(x, attributes.dim, start, size));
    start += size;
  }
  return parts;
}

std::vector<DTensor> Split(const DTensor& x, int64_t size, int dim) {
  const int64_t extent = x.shape()[NormalizeDim(dim, x.ndim(), "Split")];
  WEFT_REQUIRE(size > 0, "Split: expected parts of a positive size, got ", size);
  std::vector<int64_t> sizes;
  for (int64_t start = 0; start < extent; start += size) sizes.push_back(std::min(size, extent - start));
  if (sizes.empty()) sizes.push_back(0);
  return Split(x, sizes, dim);
}

DTensor Concat(const std::vector<DTensor>& parts, int dim) {
  WEFT_REQUIRE(!parts.empty(), "Concat: expected at least one tensor");
  if (Autocasts(parts[0])) [[unlikely]] {
    const AutocastGuard off(parts[0].context()->state(), std::nullopt);
    return Concat(AutocastToWidest(parts), dim);
  }
  const ConcatAttributes attributes = {.dim = NormalizeDim(dim, parts[0].ndim(), "Concat")};
  TensorTypes types;
  for (const DTensor& part : parts) types.push_back(part.type());
  const int64_t extent = kConcat.Infer(types, &attributes)[0].shape[attributes.dim];
  const bool split = std::any_of(parts.begin(), parts.end(), [&](const DTensor& part) {
    return CanRearrange(part, attributes.dim, extent);
  });
  if (!split) return CallAll(kConcat, parts, attributes)[0];
  CheckOperands({.op = kConcat, .operands = Borrow(parts), .attributes = &attributes});
  std::vector<DimRun> runs;
  int64_t to = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t length = parts[i].shape()[attributes.dim];
    runs.push_back({.source = static_cast<int>(i), .to = to, .length = length});
    to += length;
  }
  return Rearrange("concat", parts, attributes.dim, runs, extent);
}

DTensor Stack(const std::vector<DTensor>& parts, int dim) {
  WEFT_REQUIRE(!parts.empty(), "Stack: expected at least one tensor");
  if (Autocasts(parts[0])) [[unlikely]] {
    const AutocastGuard off(parts[0].context()->state(), std::nullopt);
    return Stack(AutocastToWidest(parts), dim);
  }
  return CallAll(kStack, parts, {.dim = NormalizeDim(dim, parts[0].ndim() + 1, "Stack")})[0];
}

std::vector<DTensor> Unbind(const DTensor& x, int dim) {
  const DTensors parts = CallAll(kUnbind, {x}, {.dim = NormalizeDim(dim, x.ndim(), "Unbind")});
  return {parts.begin(), parts.end()};
}

DTensor Pad(const DTensor& x, const std::vector<std::pair<int64_t, int64_t>>& widths, double value) {
  PadAttributes attributes;
  for (const auto& [before, after] : widths) {
    attributes.before.push_back(before);
    attributes.after.push_back(after);
  }
  kPad.Infer({x.type()}, &attributes);  // for its errors
  RequireFinite("Pad", x.dtype(), value);
  DTensor y = x;
  bool rest = false;
  for (int dim = 0; dim < x.ndim(); ++dim) {
    int64_t& before = attributes.before[dim];
    int64_t& after = attributes.after[dim];
    const int64_t extent = before + x.shape()[dim] + after;
    if (extent == x.shape()[dim]) continue;
    if (!CanRearrange(y, dim, extent)) {
      rest = true;
      continue;
    }
    const DimRun run = {.to = before, .length = x.shape()[dim]};
    y = Rearrange("pad", {y}, dim, {run}, extent, value);
    before = after = 0;
  }
  if (!rest) return y;
  // By bits, since only +0 is what the linear op adds.
  const bool zero = value == 0 && !std::signbit(value);
  return zero ? Call(kPad, {y}, attributes) : Call(kPadValue, {y}, attributes, {.value = value});
}

DTensor Roll(const DTensor& x, int64_t shift, int dim) {
  const int at = NormalizeDim(dim, x.ndim(), "Roll");
  const int64_t extent = x.shape()[at];
  const int64_t steps = extent == 0 ? 0 : (shift % extent + extent) % extent;
  if (steps == 0) return x;
  if (!CanRearrange(x, at, extent)) return Call(kRoll, {x}, {.dim = at, .shift = steps});
  const DimRun ahead = {.to = steps, .length = extent - steps};
  const DimRun round = {.from = extent - steps, .length = steps};
  return Rearrange("roll", {x}, at, {ahead, round}, extent);
}

DTensor Flip(const DTensor& x, const std::vector<int>& dims) {
  FlipAttributes attributes;
  for (int dim : dims) attributes.dims.push_back(NormalizeDim(dim, x.ndim(), "Flip"));
  DTensor y = Call(kFlip, {x}, attributes);
  for (int dim : attributes.dims) y = SplitAs(kFlip.name(), x, y, dim);
  return y;
}

DTensor Tril(const DTensor& x, int64_t diagonal) {
  return Call(kTriangle, {x}, {.lower = true, .diagonal = diagonal});
}

DTensor Triu(const DTensor& x, int64_t diagonal) {
  return Call(kTriangle, {x}, {.lower = false, .diagonal = diagonal});
}

}  // namespace weft
