#ifndef WEFT_DTENSOR_NN_PART_CALL_H_
#define WEFT_DTENSOR_NN_PART_CALL_H_

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"

namespace weft {

// A call that the ranks of one mesh make, which is part of what a program on more ranks does. On those ranks it runs
// `run`; on others it runs nothing, and its outputs are absent.
//
// In backward, ranks meet at the transfers between meshes (BringTo), so each has to reach the same ones. Therefore the
// outputs lead to all inputs that have a history, on every rank: on those that run it too, whatever `run` did with them.
//
// `inputs`: on the mesh, absent on other ranks; undefined ones are let be.
// Errors: those of `run`, whose errors here name `name`: another number of outputs, outputs on another mesh; one that is
//         not floating, where an input has a history, since other ranks cannot know that it has none.
DTensors CallOnPart(absl::string_view name, const IntrusivePtr<MeshContext>& part, const DTensors& inputs,
                    int num_outputs, absl::FunctionRef<DTensors(const DTensors&)> run);

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_PART_CALL_H_
