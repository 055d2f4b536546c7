#ifndef WEFT_DTENSOR_NN_NORM_H_
#define WEFT_DTENSOR_NN_NORM_H_

#include <string>

#include "dtensor/nn/module.h"

namespace weft {

// Normalises the last dim to mean 0 and variance 1, then scales and shifts.
// Shape: x [..., d] -> [..., d]; weight [d], initially one; bias [d], initially zero.
class LayerNorm : public Module {
 public:
  LayerNorm(Module* parent, std::string name, int64_t dim, double eps = 1e-5);

  Parameter weight;
  Parameter bias;

 protected:
  DTensor Forward(const DTensor& x) override;

 private:
  double eps_;
};

// Divides the last dim by its root mean square, then scales: Llama's norm.
// Shape: x [..., d] -> [..., d]; weight [d], initially one.
class RmsNorm : public Module {
 public:
  RmsNorm(Module* parent, std::string name, int64_t dim, double eps = 1e-5);

  Parameter weight;

 protected:
  DTensor Forward(const DTensor& x) override;

 private:
  double eps_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_NORM_H_
