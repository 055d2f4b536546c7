#include "dtensor/nn/norm.h"

#include "dtensor/functions.h"

namespace weft {

LayerNorm::LayerNorm(Module* parent, std::string name, int64_t dim, double eps)
    : Module(parent, std::move(name)),
      weight(this, "weight", {.shape = {dim}, .initializer = Initializer::Constant(1), .decays = false}),
      bias(this, "bias", {.shape = {dim}, .initializer = Initializer::Constant(0), .decays = false}),
      eps_(eps) {}

DTensor LayerNorm::Forward(const DTensor& x) { return LayerNormalize(x, weight.Value(), bias.Value(), eps_); }

RmsNorm::RmsNorm(Module* parent, std::string name, int64_t dim, double eps)
    : Module(parent, std::move(name)),
      weight(this, "weight", {.shape = {dim}, .initializer = Initializer::Constant(1), .decays = false}),
      eps_(eps) {}

DTensor RmsNorm::Forward(const DTensor& x) { return RmsNormalize(x, weight.Value(), eps_); }

}  // namespace weft
