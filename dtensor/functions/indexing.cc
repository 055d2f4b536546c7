#include "dtensor/functions/indexing.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/elementwise.h"
#include "dtensor/functions/shape.h"
#include "ops/indexing/gather.h"
#include "ops/indexing/index_select.h"

namespace weft {
namespace {

// Where x lies, as the wish for what is to be added to it; terms are added to any layout of the sum.
Layout WithoutPartial(const Layout& layout) {
  Layout result = layout;
  for (int axis : layout.PartialAxes()) result = result.WithReplicate(axis);
  return result;
}

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

DTensor SumAtIndices(const DTensor& x, int dim, const DTensor& index, const DTensor& src) {
  const IndexAddAttributes attributes = {.dim = dim, .extent = x.shape()[dim]};
  bool fits = src.ndim() == x.ndim();
  for (int d = 0; d < x.ndim() && fits; ++d) fits = d == dim || src.shape()[d] == x.shape()[d];
  WEFT_REQUIRE(fits, "index_add: src must have the extents of x but for dim ", dim, "; x is ", x.ToString(),
               ", src is ", src.ToString());
  const Layout like = WithoutPartial(x.layout());
  const NoScalars scalars;
  return CallErased({kIndexAdd, {index, src}, &attributes, &scalars, &like})[0];
}

}  // namespace

DTensor IndexSelect(const DTensor& x, int dim, const DTensor& index) {
  return Call(kIndexSelect, {x, index}, {.dim = NormalizeDim(dim, x.ndim(), "IndexSelect")});
}

DTensor IndexAdd(const DTensor& x, int dim, const DTensor& index, const DTensor& src) {
  return Add(x, SumAtIndices(x, NormalizeDim(dim, x.ndim(), "IndexAdd"), index, src));
}

DTensor IndexCopy(const DTensor& x, int dim, const DTensor& index, const DTensor& src) {
  const int at = NormalizeDim(dim, x.ndim(), "IndexCopy");
  return Add(Call(kIndexZero, {x, index}, {.dim = at}), SumAtIndices(x, at, index, src));
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
  const ScatterSumAttributes attributes = {.dim = at, .extent = x.shape()[at]};
  const Layout like = WithoutPartial(x.layout());
  const NoScalars scalars;
  DTensor sum = CallErased({kScatterSum, {index, terms}, &attributes, &scalars, &like})[0];
  std::vector<std::pair<int64_t, int64_t>> widths(x.ndim());
  for (int d = 0; d < x.ndim(); ++d) widths[d] = {0, x.shape()[d] - sum.shape()[d]};
  if (sum.shape() != x.shape()) sum = Pad(sum, widths);
  return Add(x, sum);
}

}  // namespace weft
