#include "dtensor/nn/mlp.h"

namespace weft {

Mlp::Mlp(Module* parent, std::string name, int64_t dim, int64_t hidden, const Initializer& residual_weight)
    : Module(parent, std::move(name)),
      up(this, "up", dim, hidden),
      down(this, "down", hidden, dim, {.weight = residual_weight, .gelu_input = true}) {}

DTensor Mlp::Forward(const DTensor& x) { return down(up(x)); }

}  // namespace weft
