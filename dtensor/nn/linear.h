// A linear layer.

#ifndef WEFT_DTENSOR_NN_LINEAR_H_
#define WEFT_DTENSOR_NN_LINEAR_H_

#include <optional>
#include <string>

#include "dtensor/nn/module.h"

namespace weft {

struct LinearOptions {
  bool bias = true;
  Initializer weight = Initializer::Normal(0, 0.02);  // GPT-2's
  int column_dim = 0;                                 // which output dim ColumnParallel splits
  int row_dim = 0;                                    // which input dim RowParallel splits
  bool even_split = false;  // the two count whole things (heads): their extents must divide by the axis
  bool gelu_input = false;  // y = gelu(x) w + b, by tanh
};

// y = x w + b, contracting the last dims of x with the first dims of w, which keep their logical extents:
// qkv is Linear({d}, {3, h, e}), the projection after attention Linear({h, e}, {d}). Where it has a
// bias, the gradient of an activation of its own (gelu_input) is computed with that of the product.
//
// Shape: x [..., in...] -> y [..., out...]; weight [in..., out...], bias [out...], initially zero.
class Linear : public Module {
 public:
  Linear(Module* parent, std::string name, const Shape& in, const Shape& out,
         const LinearOptions& options = {});
  Linear(Module* parent, std::string name, int64_t in, int64_t out, const LinearOptions& options = {})
      : Linear(parent, std::move(name), Shape{in}, Shape{out}, options) {}

  Parameter weight;
  std::optional<Parameter> bias;

 protected:
  DTensor Forward(const DTensor& x) override;

 private:
  Shape in_;
  Shape out_;
  bool gelu_input_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_LINEAR_H_
