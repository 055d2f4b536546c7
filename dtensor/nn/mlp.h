#ifndef WEFT_DTENSOR_NN_MLP_H_
#define WEFT_DTENSOR_NN_MLP_H_

#include <string>

#include "dtensor/nn/linear.h"
#include "dtensor/nn/module.h"

namespace weft {

// down(gelu(up(x))): the feed-forward half of a GPT block; gelu is down's input activation.
// Shape: x [..., d] -> [..., d], through [..., hidden].
class Mlp : public Module {
 public:
  Mlp(Module* parent, std::string name, int64_t dim, int64_t hidden,
      const Initializer& residual_weight = Initializer::Normal(0, 0.02));

  Linear up;
  Linear down;

 protected:
  DTensor Forward(const DTensor& x) override;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_MLP_H_
