// A residual network for small images: the model of train_resnet.

#ifndef WEFT_EXAMPLES_IMAGES_RESNET_H_
#define WEFT_EXAMPLES_IMAGES_RESNET_H_

#include <optional>
#include <string>
#include <vector>

#include "dtensor/nn/layers/layers.h"
#include "dtensor/nn/segmented_module.h"
#include "parallel/plan.h"

namespace weft {

struct ResNetConfig {
  int64_t classes = 10;
  int64_t width = 16;  // channels of the first stage; each stage has twice those of the one before
  int64_t stages = 2;
  int64_t blocks = 2;  // per stage
};

// relu(norm(conv(relu(norm(conv(x))))) + x), both convolutions 3 x 3. Where extents or channels change, x goes through a
// convolution 1 x 1 and a norm.
// Source: He et al., "Deep residual learning for image recognition", 2015.
class ResNetBlock : public Module {
 public:
  ResNetBlock(Module* parent, std::string name, int64_t in, int64_t out, int64_t stride);

  nn::Conv2d conv1;
  BatchNorm2d norm1;
  nn::Conv2d conv2;
  BatchNorm2d norm2;
  std::optional<Sequential> shortcut;

 protected:
  DTensor Forward(const DTensor& x) override;
};

// Its segments are the stem, each block, the head.
// Shape: images [n, 1, h, w] -> logits [n, classes].
class ResNet : public SegmentedModule {
 public:
  explicit ResNet(const ResNetConfig& config);

  Sequential stem{this, "stem"};
  ModuleList blocks{this, "blocks"};
  Linear head;

  LossSum LossOf(const DTensors& logits, const DTensor& labels) override;

 protected:
  std::vector<Segment> MakeSegments() override;

 private:
  const ResNetConfig config_;
};

// Splits the channels within each block over `axis`: the first convolution by its outputs, the second by its inputs.
std::vector<PlanEntry> ResNetTensorPlan(const std::string& axis);

}  // namespace weft

#endif  // WEFT_EXAMPLES_IMAGES_RESNET_H_
