// What train_resnet and train_vit share: flags, the plan, training, evaluation, progress.

#ifndef WEFT_EXAMPLES_IMAGES_IMAGE_TRAINING_H_
#define WEFT_EXAMPLES_IMAGES_IMAGE_TRAINING_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/nn/segmented_module.h"
#include "examples/images/image_data.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/plan.h"
#include "runtime/base/flags.h"

namespace weft {

// A program: a model and how tensor parallelism splits it.
struct ImageProgram {
  std::string name;     // "train_resnet"
  std::string summary;  // of --help
  // images [n, 1, h, w] -> logits [n, classes]; its blocks are "blocks.0", "blocks.1", ...
  std::function<std::unique_ptr<SegmentedModule>(const ImageSet& train, int64_t classes)> make_model;
  std::function<std::vector<PlanEntry>(const std::string& axis)> tensor_plan;
  // What --lr and --steps are, if they are not given.
  double lr = 1e-3;
  int64_t steps = 1000;
};

// The plan of a mesh with axes of pp, dp and tp: the blocks in stages along pp, which lie as those of `schedule`; `tensor_plan` on
// tp; and on dp what `data_plan` says, ddp or fsdp.
// `schedule`: given if there is an axis pp.
// Errors: InvalidArgument for another axis or another name, and for fsdp without an axis dp.
Plan ImagePlan(const DeviceMesh& mesh, const std::string& data_plan, const ImageProgram& program,
               const std::optional<PipelineSchedule>& schedule = std::nullopt);

// Runs the program: parses its flags, trains, prints.
int RunImageProgram(int argc, char** argv, const ImageProgram& program);

}  // namespace weft

#endif  // WEFT_EXAMPLES_IMAGES_IMAGE_TRAINING_H_
