#include "dtensor/functions/indexing.h"

#include <limits>
#include <vector>

#include "dtensor/dispatch.h"
#include "dtensor/functions/compare.h"
#include "dtensor/functions/creation.h"
#include "dtensor/functions/elementwise.h"
#include "dtensor/functions/select.h"
#include "dtensor/functions/shape.h"
#include "dtensor/functions/slices.h"
#include "mesh/redistribution/mesh_transfer.h"
#include "ops/indexing/gather.h"
#include "ops/indexing/index_select.h"
#include "ops/indexing/scatter_reduce.h"
#include "ops/op/absent.h"

namespace weft {
namespace {

// Errors: InvalidArgument if `index` is longer than x in some dim but `dim`.
void RequireFits(absl::string_view function, const DTensor& x, const DTensor& index, int dim) {
  WEFT_REQUIRE(index.ndim() == x.ndim(), function, ": the index must have as many dims as ", x.ToString(),
               ", got ", index.ToString());
  for (int d = 0; d < x.ndim(); ++d) {
    WEFT_REQUIRE(d == dim || index.shape()[d] <= x.shape()[d], function, ": the index is longer in dim ", d,
                 "; it is ", index.ToString(), ", the operand ", x.ToString());
  }
}

// The part of x that goes with `index`: the leading elements of all dims but `dim`.
DTensor LeadingPart(const DTensor& x, const DTensor& index, int dim) {
  DTensor part = x;
  for (int d = 0; d < x.ndim(); ++d) {
    if (d != dim && index.shape()[d] < x.shape()[d]) part = Slice(part, d, 0, index.shape()[d]);
  }
  return part;
}

DTensor SumAtIndices(absl::string_view function, const DTensor& x, int dim, const DTensor& index,
                     const DTensor& src) {
  const IndexAddAttributes attributes = {.dim = dim, .extent = x.shape()[dim], .to_add = true};
  bool fits = src.ndim() == x.ndim();
  for (int d = 0; d < x.ndim() && fits; ++d) fits = d == dim || src.shape()[d] == x.shape()[d];
  WEFT_REQUIRE(fits, function, ": src must have the extents of x but for dim ", dim, "; x is ", x.ToString(),
               ", src is ", src.ToString());
  WEFT_REQUIRE(index.ndim() != 1 || index.shape()[0] == src.shape()[dim], function,
               ": expected an index for each of the ", src.shape()[dim], " along dim ", dim, " of ",
               src.ToString(), ", got ", index.ToString());
  const Layout like = WithoutPartial(x.layout());
  const NoScalars scalars;
  return CallErased({kIndexAdd, {index, src}, &attributes, &scalars, &like})[0];
}

// The sum of src at each place of x that the index names, kAbsent elsewhere; index of x's extents but for dim.
DTensor ScatterSumLike(const DTensor& x, int dim, const DTensor& index, const DTensor& src) {
  const ScatterSumAttributes attributes = {.dim = dim, .extent = x.shape()[dim], .to_add = true};
  const Layout like = WithoutPartial(x.layout());
  const NoScalars scalars;
  return CallErased({kScatterSum, {index, src}, &attributes, &scalars, &like})[0];
}

// The extremum or product without x where some src goes: there x starts as what changes no result. No double is the greatest
// i64, so the minimum of integers is found as the maximum of -1 - x, which always exists.
DTensor ReduceWithoutSelf(const DTensor& x, const DTensor& is_reached, int dim, const DTensor& index,
                          const DTensor& src, ReduceOp reduce) {
  const auto without_self = [&](double nothing) {
    return Call(kScatterReduce, {Where(is_reached, nothing, x), index, src},
                {.dim = dim, .reduce = reduce, .counts_x = false});
  };
  if (reduce == ReduceOp::kProduct) return without_self(1);
  const bool floating = IsFloating(x.dtype());
  if (reduce == ReduceOp::kMin && !floating) {
    return Sub(-1, ReduceWithoutSelf(Sub(-1, x), is_reached, dim, index, Sub(-1, src), ReduceOp::kMax));
  }
  const double infinity = std::numeric_limits<double>::infinity();
  const double lowest = floating                   ? -infinity
                        : x.dtype() == DType::kI32 ? std::numeric_limits<int32_t>::lowest()
                                                   : -0x1p63;
  return without_self(reduce == ReduceOp::kMax ? lowest : infinity);
}

DTensor MeanOf(const DTensor& x, int dim, const DTensor& index, const DTensor& src,
               const DTensor& is_reached) {
  WEFT_REQUIRE(IsFloating(x.dtype()), "ScatterReduce: expected a floating dtype for a mean, got ",
               x.ToString());
  if (x.dtype() == DType::kF16 || x.dtype() == DType::kBF16) {
    // f16 counts no further than 65504, and bf16 leaves numbers out above 256.
    const auto wide = [](const DTensor& half) { return Cast(half, DType::kF32); };
    return Cast(MeanOf(wide(x), dim, index, wide(src), is_reached), x.dtype());
  }
  const DTensor ones = OnesLike(x);
  const DTensor count = ScatterSumLike(x, dim, index, OnesLike(src));
  const DTensor self = is_reached.defined() ? Where(is_reached, 0, x) : x;
  const DTensor self_count = is_reached.defined() ? Where(is_reached, 0, ones) : ones;
  return Div(Add(self, ScatterSumLike(x, dim, index, src)), Add(self_count, count));
}

// Of an index of x's extents but for `dim`, and a src of the index's shape.
DTensor ReduceAt(const DTensor& x, int dim, const DTensor& index, const DTensor& src,
                 const ScatterReduceOptions& options) {
  DTensor is_reached;  // undefined where x counts
  if (!options.include_self) is_reached = Greater(ScatterSumLike(x, dim, index, OnesLike(src)), 0);
  switch (options.reduction) {
    case ScatterReduction::kSum:
      return Add(is_reached.defined() ? Where(is_reached, 0, x) : x, ScatterSumLike(x, dim, index, src));
    case ScatterReduction::kMean:
      return MeanOf(x, dim, index, src, is_reached);
    default:
      break;
  }
  const ReduceOp reduce = options.reduction == ScatterReduction::kProd   ? ReduceOp::kProduct
                          : options.reduction == ScatterReduction::kAmax ? ReduceOp::kMax
                                                                         : ReduceOp::kMin;
  return is_reached.defined() ? ReduceWithoutSelf(x, is_reached, dim, index, src, reduce)
                              : Call(kScatterReduce, {x, index, src}, {.dim = dim, .reduce = reduce});
}

}  // namespace

DTensor IndexSelect(const DTensor& x, int dim, const DTensor& index) {
  return Call(kIndexSelect, {x, index}, {.dim = NormalizeDim(dim, x.ndim(), "IndexSelect")});
}

DTensor IndexAdd(const DTensor& x, int dim, const DTensor& index, const DTensor& src) {
  return Add(x, SumAtIndices("IndexAdd", x, NormalizeDim(dim, x.ndim(), "IndexAdd"), index, src));
}

DTensor IndexCopy(const DTensor& x, int dim, const DTensor& index, const DTensor& src) {
  const int at = NormalizeDim(dim, x.ndim(), "IndexCopy");
  return Add(Call(kIndexZero, {x, index}, {.dim = at, .to_add = true}),
             SumAtIndices("IndexCopy", x, at, index, src));
}

DTensor Gather(const DTensor& x, int dim, const DTensor& index) {
  const int at = NormalizeDim(dim, x.ndim(), "Gather");
  RequireFits("Gather", x, index, at);
  return Call(kGather, {LeadingPart(x, index, at), index}, {.dim = at});
}

DTensor ScatterAdd(const DTensor& x, int dim, const DTensor& index, const DTensor& src) {
  const int at = NormalizeDim(dim, x.ndim(), "ScatterAdd");
  RequireFits("ScatterAdd", src, index, /*dim=*/-1);
  RequireFits("ScatterAdd", x, index, at);
  const DTensor terms = LeadingPart(src, index, /*dim=*/-1);
  DTensor sum = ScatterSumLike(x, at, index, terms);
  std::vector<std::pair<int64_t, int64_t>> widths(x.ndim());
  for (int d = 0; d < x.ndim(); ++d) widths[d] = {0, x.shape()[d] - sum.shape()[d]};
  if (sum.shape() != x.shape()) sum = Pad(sum, widths, kAbsent);
  return Add(x, sum);
}

DTensor ScatterReduce(const DTensor& x, int dim, const DTensor& index, const DTensor& src,
                      const ScatterReduceOptions& options) {
  const int at = NormalizeDim(dim, x.ndim(), "ScatterReduce");
  WEFT_REQUIRE(x.dtype() == src.dtype() && x.dtype() != DType::kU8 && x.dtype() != DType::kBool,
               "ScatterReduce: expected two operands of one floating dtype, i32 or i64, got ", x.ToString(),
               " and ", src.ToString());
  RequireFits("ScatterReduce", src, index, /*dim=*/-1);
  RequireFits("ScatterReduce", x, index, at);
  const DTensor terms = LeadingPart(src, index, /*dim=*/-1);
  const DTensor part = ReduceAt(LeadingPart(x, index, at), at, index, terms, options);
  if (part.shape() == x.shape()) return part;
  std::vector<SliceRange> leading(x.ndim());
  for (int d = 0; d < x.ndim(); ++d) leading[d].stop = part.shape()[d];
  return SliceScatter(x, part, leading);
}

}  // namespace weft
