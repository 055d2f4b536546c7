#ifndef WEFT_DTENSOR_FUNCTIONS_REARRANGE_H_
#define WEFT_DTENSOR_FUNCTIONS_REARRANGE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/dtensor.h"
#include "mesh/redistribution/rearrangement.h"

namespace weft {

// Whether some axis of more than one rank splits `dim` of x.
bool IsSplitAlong(const DTensor& x, int dim);

// Whether pieces of a dim of `extent` can be made of x's pieces by Rearrange with work for every rank: x is
// split along `dim`, over no more ranks than `extent`. (Of fewer elements, owner-computes leaves a Partial,
// which a reduction or a linear op takes as it is.)
bool CanRearrange(const DTensor& x, int dim, int64_t extent);

// The sources' elements in a new order along one dim, split there as the sources are; point to point: each
// element goes straight from the rank that holds it to the one that is to hold it, and what stays is only
// copied. What no run reaches is `fill`, converted to the dtype.
//
// Shape:  the sources lie on one mesh (CheckOperands) and differ in `dim` only; the result has `extent` there.
//         No element of a source is in two runs, nor one of the result.
// Layout: the result's is that of one source, the one to which it is cheapest to bring the others; this moves
//         them first, where they differ. Partial (sum, avg) axes that all sources have stay, if fill is 0;
//         else they are reduced first.
// Cost:   one all-to-all over the axes that split `dim`, of exactly what changes hands; its gradient as much. Both
//         count as implicit: guards and budgets hold them, and Explain shows them, as `name`. What goes where is
//         worked out once and kept in the context.
// Errors: those of the guards in force.
DTensor Rearrange(absl::string_view name, absl::Span<const DTensor> sources, int dim,
                  absl::Span<const DimRun> runs, int64_t extent, double fill = 0);

// Reduce-scatters y along the axes that split `dim` of x and made y Partial, so that it is split like x: for
// orders of single elements, of which runs would be lists as long as the dim.
// Cost:   the reduce-scatter, which counts as implicit, as `name`; none where x is not split along `dim`.
// Errors: those of the guards in force.
DTensor SplitAs(absl::string_view name, const DTensor& x, const DTensor& y, int dim);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_REARRANGE_H_
