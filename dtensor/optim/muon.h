#ifndef WEFT_DTENSOR_OPTIM_MUON_H_
#define WEFT_DTENSOR_OPTIM_MUON_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/optim/adamw.h"
#include "dtensor/optim/newton_schulz.h"

// Momentum whose update is made orthogonal, for matrices; AdamW for all other parameters. For the scaled
// gradient g of a matrix, learning rate lr and weight decay w:
//
//   b <- b + (1 - momentum) (g - b)
//   u <- NewtonSchulz(g + momentum (b - g))       without nesterov NewtonSchulz(b)
//   p <- p - lr w p - lr adjust(p) u
//
// Matrices are the parameters whose group says so (ParameterGroup::matrix), such as the weights of a GPT's
// blocks:
//
//   Muon muon(model.AllParameters(), {.groups = {{.path = "blocks.*.mlp.*.weight", .matrix = "io"},
//                                                {.path = "blocks.*.attn.qkv.weight", .matrix = "iboo"},
//                                                {.path = "blocks.*.attn.proj.weight", .matrix = "iio"}}});
//
// Embeddings, heads, biases and norms are best left to AdamW. Both have the step's learning rate; groups'
// lr_scale tells them apart, and with MuonAdjust::kMatchRmsAdamW one rate serves both.
//
// State:  of matrices "<path>.momentum"; of the others AdamW's.
// Layout: any. Where a matrix is split, as many matrices of one shape as the axes have ranks are stacked, and
//         redistributed so that those axes split the stack and not the matrices: each rank makes its share
//         orthogonal, and sends back what others hold. Ranks that hold the same make the same.
// Cost:   all-to-alls of this rank's pieces per stack, there and back, under purpose `param`; NewtonSchulz's
//         flops for 1 / n of the matrices over n ranks that split them; memory of one whole matrix per rank
//         while it runs.
// Source: PyTorch's Muon, whose products are in bf16 (`products` says so here). Jordan, "Muon",
//         https://kellerjordan.github.io/posts/muon.
namespace weft {

// What a matrix's learning rate is multiplied by, for `in` input and `out` output features.
enum class MuonAdjust : uint8_t {
  kOriginal,           // sqrt(max(1, out / in))
  kMatchRmsAdamW,      // 0.2 sqrt(max(out, in)): updates of about the rms of AdamW's
  kSpectralUnclamped,  // sqrt(out / in)
  kNone,               // 1
};

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;  // of matrices
  MuonAdjust adjust = MuonAdjust::kOriginal;
  NewtonSchulzOptions newton_schulz = {};
  std::optional<DType> products = std::nullopt;  // dtype of NewtonSchulz; the parameter's if not given
  AdamWOptions adamw = {};                       // of the other parameters, without groups
  std::vector<ParameterGroup> groups = {};       // betas are AdamW's

  bool operator==(const MuonOptions&) const = default;
};

class Muon : public AdamW {
 public:
  // Errors: InvalidArgument as ResolveGroups and RequireDecay, and, of `adamw`, RequireBetas, RequireEps and RequireDecay;
  //         for a matrix with another number of letters than the parameter has dims; for groups in `adamw`; for a momentum
  //         outside [0, 1).
  Muon(std::vector<Parameter*> parameters, const MuonOptions& options);

 protected:
  void Update(absl::Span<const int> indices, double lr, const DTensor& scale) override;
  // Its stacks are of matrices from anywhere in the model.
  bool updates_in_parts() const override { return false; }
  std::vector<std::pair<std::string, DTensor>> Moments() const override;

 private:
  // What is made orthogonal, of each matrix.
  std::vector<DTensor> MomentumUpdates(absl::Span<const int> matrices, const DTensor& scale);
  std::vector<std::vector<size_t>> StacksOf(absl::Span<const int> matrices) const;
  double AdjustmentOf(int index) const;

  MuonOptions options_;
  std::vector<DTensor> momentum_;  // by parameter, undefined for AdamW's
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_MUON_H_
