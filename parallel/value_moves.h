// Values from where a model lay to where it lies.

#ifndef WEFT_PARALLEL_VALUE_MOVES_H_
#define WEFT_PARALLEL_VALUE_MOVES_H_

#include <string>
#include <utility>

#include "absl/types/span.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"

namespace weft {

// The elements of `from` go to the memory of `to`, of the same shape, on another mesh of the same ranks or on the same,
// cast to its dtype. In place; no gradient sees it. `what` is a literal that names the writer in the error of a backward pass
// that needed the elements before.
// Cost:   one redistribution.
void MoveValue(const DTensor& from, const DTensor& to, const char* what);

// Tensors by name. Ranks of a model may have different ones (stages, parts), and the same name on different meshes; all ranks of
// one mesh have the same names there, and each tensor in the same type and layout.
using NamedTensors = absl::Span<const std::pair<std::string, DTensor>>;

// The elements of each tensor of `to` become those of its name in `from`, where this rank has both. In place.
// Cost:   one redistribution each.
// Errors: NotFound naming a tensor of `to` that `from` lacks; InvalidArgument for one of another type; FailedPrecondition for
//         one on a mesh of other ranks. Before anything has moved; starting with `what`, a literal.
void MoveByName(NamedTensors from, NamedTensors to, const char* what);

// The same where ranks have different tensors. A tensor is taken from the same mesh, if its name is there; otherwise from the
// mesh of the first rank of `whole` that has the name. On meta nothing moves.
//
// `whole`: of all ranks of the model. Each calls this, with what it has.
// `may_cast`: whether dtypes may differ.
// Cost:   an all-gather of the descriptions of all tensors (as text, some 200 bytes for each and each mesh that has it), under
//         purpose `metric`; of each tensor and each mesh that wants it one redistribution, over a communicator for each pair of
//         meshes, which is made at its first use and stays.
// Errors: NotFound naming a tensor that some rank wants and none has; InvalidArgument for one of another type, and for ranks
//         of a mesh that have different names, or are not in `whole`. The same on every rank, before anything has moved;
//         starting with `what`.
void MoveByName(MeshContext& whole, NamedTensors from, NamedTensors to, bool may_cast, const char* what);

}  // namespace weft

#endif  // WEFT_PARALLEL_VALUE_MOVES_H_
