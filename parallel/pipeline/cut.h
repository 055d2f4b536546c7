// What a Pipeline entry of a plan means for a model's tree.

#ifndef WEFT_PARALLEL_PIPELINE_CUT_H_
#define WEFT_PARALLEL_PIPELINE_CUT_H_

#include <vector>

#include "mesh/device_mesh.h"
#include "parallel/model_tree.h"
#include "parallel/style.h"

namespace weft {

// The stages of a model: which rank has each, which segments it runs, and what has to be there.
struct StageCut {
  std::vector<int> stage_ranks;     // the index along the axis of each stage's rank
  std::vector<int> first_segments;  // of each stage, and behind the last
  // Of each module and each parameter, by number: the stages that have it, ascending; empty: no stage of its own.
  std::vector<std::vector<int>> module_stages;
  std::vector<std::vector<int>> parameter_stages;
};

// Divides the segments that run one of the modules of `matches` among the stages of the style, those before them to the
// first, those after them to the last.
// Errors: InvalidArgument, if the model is no SegmentedModule, if no segment runs one of the modules, if segments that do
//         not lie in between, if there are fewer segments than stages, if costs or sizes do not fit the segments, if
//         a parameter is in no segment, or if a segment names a module or a parameter of another model.
StageCut CutIntoStages(const ModelTree& tree, const ModelTree::Matches& matches, const DeviceMesh& mesh,
                       const Style& style);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_CUT_H_
