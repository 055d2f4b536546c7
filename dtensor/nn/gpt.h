// GPT-2 as a chain of segments.

#ifndef WEFT_DTENSOR_NN_GPT_H_
#define WEFT_DTENSOR_NN_GPT_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/functions.h"
#include "dtensor/nn/attention.h"
#include "dtensor/nn/embedding.h"
#include "dtensor/nn/linear.h"
#include "dtensor/nn/mlp.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/norm.h"
#include "dtensor/nn/segmented_module.h"

namespace weft {

struct GptConfig {
  int64_t vocabulary = 256;
  int64_t context = 64;  // longest sequence
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t dim = 128;
  double dropout = 0;      // after the embeddings and at the end of both halves of a block
  bool tied_head = false;  // score against the token embedding's table, as GPT-2

  bool operator==(const GptConfig&) const = default;

  // GPT-2 small at context 1024: 124,439,808 parameters, head tied.
  static GptConfig Gpt2_124M() {
    return {.vocabulary = 50257, .context = 1024, .layers = 12, .heads = 12, .dim = 768, .tied_head = true};
  }
};

// One transformer block, norms first: x += attn(ln_1(x)); x += mlp(ln_2(x)).
// Shape: x [b, s, d] -> [b, s, d].
class GptBlock : public Module {
 public:
  GptBlock(Module* parent, std::string name, const GptConfig& config);

  LayerNorm ln_1;
  CausalSelfAttention attn;
  LayerNorm ln_2;
  Mlp mlp;

 protected:
  DTensor Forward(const DTensor& x) override;

 private:
  double dropout_;
};

// GPT-2: token and position embeddings, blocks, a final norm, a head. Weights start as GPT-2's: normal with
// deviation 0.02, projections into the residual stream divided by sqrt(2 layers), biases zero.
// Source: Radford et al., "Language models are unsupervised multitask learners", 2019.
// Shape:  tokens [b, s] -> logits [b, s, v].
class Gpt : public SegmentedModule {
 public:
  // Errors: InvalidArgument for extents below 1, or heads that do not divide dim.
  explicit Gpt(const GptConfig& config);

  const GptConfig& config() const { return config_; }

  // The summed cross-entropy of the next tokens and their number; `.Mean()` is what training minimises.
  LossSum Loss(const DTensor& tokens, const DTensor& targets);
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override;

  Embedding wte;
  Parameter wpe;  // [context, d]
  std::vector<std::unique_ptr<GptBlock>> blocks;
  LayerNorm ln_f;
  std::unique_ptr<Module> head;

 protected:
  // The embeddings, each block, the final norm with the head.
  std::vector<Segment> MakeSegments() override;

 private:
  DTensor Embed(const DTensor& tokens);

  GptConfig config_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_GPT_H_
