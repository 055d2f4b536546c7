// How many images of a set a model tells apart.

#ifndef WEFT_EXAMPLES_IMAGES_IMAGE_ACCURACY_H_
#define WEFT_EXAMPLES_IMAGES_IMAGE_ACCURACY_H_

#include "dtensor/nn/module.h"
#include "examples/images/image_data.h"
#include "parallel/pipeline/executor.h"

namespace weft {

// The share of the set's images whose class the model scores highest, on every rank.
// `pipeline`: runs the model, if that is cut into stages. `batch_axes`: of the mesh, over which images are divided.
double Accuracy(Module& model, PipelineExecutor* pipeline, const ImageSet& set, const AxisList& batch_axes);

}  // namespace weft

#endif  // WEFT_EXAMPLES_IMAGES_IMAGE_ACCURACY_H_
