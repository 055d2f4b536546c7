#ifndef WEFT_DTENSOR_NN_MODEL_PARTS_H_
#define WEFT_DTENSOR_NN_MODEL_PARTS_H_

#include "dtensor/context/mesh_context.h"
#include "runtime/base/intrusive_ptr.h"

namespace weft {

// The whole of a model of which ranks have different parts, along one axis of its mesh: stages of a pipeline, or parts
// that a plan names (On).
struct ModelParts {
  IntrusivePtr<MeshContext> context = nullptr;  // of the whole model
  int axis = 0;                                 // that the parts lie along
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_MODEL_PARTS_H_
