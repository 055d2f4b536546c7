#ifndef WEFT_DTENSOR_NN_ATTENTION_H_
#define WEFT_DTENSOR_NN_ATTENTION_H_

#include <string>

#include "dtensor/nn/linear.h"
#include "dtensor/nn/module.h"

namespace weft {

// Causal multi-head self-attention, as in GPT-2. The product weights keep their logical dims, so heads are a
// dim that a plan can split: qkv [d, 3, h, e], proj [h, e, d].
// Shape:  x [b, s, d] -> [b, s, d].
class CausalSelfAttention : public Module {
 public:
  // `residual_weight` initialises the projection, whose output joins the residual stream.
  // Errors: InvalidArgument if `heads` does not divide `dim`.
  CausalSelfAttention(Module* parent, std::string name, int64_t dim, int64_t heads,
                      const Initializer& residual_weight = Initializer::Normal(0, 0.02));

  Linear qkv;
  Linear proj;

 protected:
  DTensor Forward(const DTensor& x) override;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_ATTENTION_H_
