// A vision transformer for small images: the model of train_vit.

#ifndef WEFT_EXAMPLES_IMAGES_VIT_H_
#define WEFT_EXAMPLES_IMAGES_VIT_H_

#include <string>
#include <vector>

#include "dtensor/nn/layers/layers.h"
#include "dtensor/nn/segmented_module.h"
#include "parallel/plan.h"

namespace weft {

struct VitConfig {
  int64_t classes = 10;
  int64_t rows = 28;  // of an image
  int64_t columns = 28;
  int64_t patch = 4;  // rows and columns of what becomes a token
  int64_t dim = 64;
  int64_t heads = 4;
  int64_t layers = 4;
  double dropout = 0;
};

// Norms first, as a GPT's block, but every token sees all others.
// Shape: x [b, s, d] -> [b, s, d].
class VitBlock : public Module {
 public:
  VitBlock(Module* parent, std::string name, const VitConfig& config);

  LayerNorm ln_1;
  Linear qkv;
  Linear proj;
  LayerNorm ln_2;
  Linear up;
  Linear down;

 protected:
  DTensor Forward(const DTensor& x) override;

 private:
  double dropout_;
};

// Patches as tokens, with a learnt position each; their mean is scored. Its segments are the patches, each block, the head.
// Source: Dosovitskiy et al., "An image is worth 16x16 words", 2020.
// Shape:  images [n, 1, h, w] -> logits [n, classes].
class Vit : public SegmentedModule {
 public:
  // Errors: InvalidArgument, unless patches divide the image.
  explicit Vit(const VitConfig& config);

  nn::Conv2d patches;
  Parameter positions;  // [s, d]
  ModuleList blocks{this, "blocks"};
  LayerNorm ln;
  Linear head;

  LossSum LossOf(const DTensors& logits, const DTensor& labels) override;

 protected:
  std::vector<Segment> MakeSegments() override;

 private:
  DTensor Tokens(const DTensor& images);

  const VitConfig config_;
};

// Splits heads and hidden features over `axis`.
std::vector<PlanEntry> VitTensorPlan(const std::string& axis);

}  // namespace weft

#endif  // WEFT_EXAMPLES_IMAGES_VIT_H_
