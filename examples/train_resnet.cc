// Trains a small residual network on Fashion-MNIST over a mesh of ranks.
//
//   bazel run //examples:train_resnet                                    two ranks, data parallel
//   bazel run //examples:train_resnet -- --mesh=dp=2 --plan=fsdp         fully sharded over two
//   bazel run //examples:train_resnet -- --mesh=tp=2                     channels of the blocks split over two
//   bazel run //examples:train_resnet -- --mesh=pp=2 --microbatches=4    two stages
//   bazel run //examples:train_resnet -- --mesh=dp=2,tp=2 --print_model  modules, layouts, flops
//
// The model (examples/images/resnet.h) is a single-device program; its batch norms have the statistics of the global batch under any
// plan, or of each microbatch where it comes in several. Prints progress lines and the accuracy on the test set.

#include "examples/images/image_training.h"
#include "examples/images/resnet.h"

int main(int argc, char** argv) {
  return weft::RunImageProgram(
      argc, argv,
      {
          .name = "train_resnet",
          .summary = "Trains a small residual network on Fashion-MNIST over a mesh of ranks.",
          .make_model = [](const weft::ImageSet&, int64_t classes) -> std::unique_ptr<weft::SegmentedModule> {
            return std::make_unique<weft::ResNet>(weft::ResNetConfig{.classes = classes});
          },
          .tensor_plan = weft::ResNetTensorPlan,
          .lr = 4e-3,
          .steps = 1000,
      });
}
