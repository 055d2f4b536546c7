// Trains a small vision transformer on Fashion-MNIST over a mesh of ranks.
//
//   bazel run //examples:train_vit                                    two ranks, data parallel
//   bazel run //examples:train_vit -- --mesh=dp=2 --plan=fsdp         fully sharded over two
//   bazel run //examples:train_vit -- --mesh=tp=2                     heads and hidden features split over two
//   bazel run //examples:train_vit -- --mesh=pp=2 --microbatches=4    two stages
//   bazel run //examples:train_vit -- --mesh=dp=2,tp=2 --print_model  modules, layouts, flops
//
// The model (examples/images/vit.h) is a single-device program. Prints progress lines and the accuracy on the test set.

#include "examples/images/image_training.h"
#include "examples/images/vit.h"

int main(int argc, char** argv) {
  return weft::RunImageProgram(
      argc, argv,
      {
          .name = "train_vit",
          .summary = "Trains a small vision transformer on Fashion-MNIST over a mesh of ranks.",
          .make_model = [](const weft::ImageSet& train,
                           int64_t classes) -> std::unique_ptr<weft::SegmentedModule> {
            // Patches of 4 x 4, or what divides smaller images.
            const int64_t patch = train.rows % 4 == 0 && train.columns % 4 == 0 ? 4 : 1;
            return std::make_unique<weft::Vit>(weft::VitConfig{
                .classes = classes, .rows = train.rows, .columns = train.columns, .patch = patch});
          },
          .tensor_plan = weft::VitTensorPlan,
          .lr = 2e-3,
          .steps = 2000,
      });
}
