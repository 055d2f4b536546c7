#include "dtensor/nn/norm.h"

#include "dtensor/functions.h"

namespace weft {

LayerNorm::LayerNorm(Module* parent, std::string name, int64_t dim, double epsilon)
    : Module(parent, std::move(name)),
      weight(this, "weight", {.shape = {dim}, .initializer = Initializer::Constant(1), .decays = false}),
      bias(this, "bias", {.shape = {dim}, .initializer = Initializer::Constant(0), .decays = false}),
      epsilon_(epsilon) {}

DTensor LayerNorm::Forward(const DTensor& x) {
  return LayerNormalize(x, weight.Value(), bias.Value(), epsilon_);
}

RmsNorm::RmsNorm(Module* parent, std::string name, int64_t dim, double epsilon)
    : Module(parent, std::move(name)),
      weight(this, "weight", {.shape = {dim}, .initializer = Initializer::Constant(1), .decays = false}),
      epsilon_(epsilon) {}

DTensor RmsNorm::Forward(const DTensor& x) { return RmsNormalize(x, weight.Value(), epsilon_); }

}  // namespace weft
