#ifndef WEFT_DTENSOR_REDISTRIBUTION_AGREEMENT_H_
#define WEFT_DTENSOR_REDISTRIBUTION_AGREEMENT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/context/mesh_context.h"
#include "mesh/layout.h"
#include "runtime/tensor/tensor.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// What the ranks of a mesh tell each other about their pieces, where a layout's word is not to be taken for
// it. Every rank calls these alike and gets the same answer or the same error. Small collectives over all
// axes, in the ledger under purpose `metric`.

// Checks that the pieces of ranks that differ only along Replicate axes are the same bits. A tensor on meta,
// which has none, agrees.
//
// Cost:   an all-gather of 8 bytes per rank, and one pass over the piece.
// Errors: InvalidArgument that starts with `what` and names the ranks that differ from the first of theirs.
void CheckReplicas(MeshContext& context, const Tensor& local, const TensorType& type, const Layout& layout,
                   absl::string_view what);

// The global type of what the ranks hold pieces of: along each dim, the sum of the pieces.
//
// Cost:   an all-gather of 80 bytes per rank.
// Errors: InvalidArgument that starts with `what`, if dtypes or ndims differ, or a piece is not what the
//         chunk rule gives its rank: names those ranks, what they hold and what the rule gives.
TensorType AgreeOnType(MeshContext& context, const Tensor& local, const Layout& layout,
                       absl::string_view what);

// Checks that the contexts of all ranks have the same machine: ranks that choose by other figures choose other ways,
// and wait for each other in different collectives. On meta, where nothing is sent, they agree.
//
// Cost:   an all-gather of 16 bytes per axis and rank, and 16 per rank; nothing on a mesh of one rank.
// Errors: InvalidArgument that starts with `what`, on every rank: names the first rank whose machine differs from
//         that of the mesh's first rank, the first field that does, and both values.
void CheckSameMachine(MeshContext& context, absl::string_view what);

// The group of all ranks of the mesh, in the order of mesh.ranks(). Made at its first use, on every rank alike.
Communicator& AllRanks(MeshContext& context);

// The texts of all ranks, any lengths, in the order of mesh.ranks(). Not on meta.
//
// Cost:   as AllGatherTexts (runtime/comm/gather_texts.h).
std::vector<std::string> GatherTexts(MeshContext& context, const std::string& mine);

}  // namespace weft

#endif  // WEFT_DTENSOR_REDISTRIBUTION_AGREEMENT_H_
