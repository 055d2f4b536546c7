// Functions without parameters as modules, so that they are links of a chain: Sequential net; net.Add<nn::Relu>().

#ifndef WEFT_DTENSOR_NN_LAYERS_POINTWISE_H_
#define WEFT_DTENSOR_NN_LAYERS_POINTWISE_H_

#include <string>

#include "dtensor/functions.h"
#include "dtensor/nn/module.h"

namespace weft::nn {

// Zeroes each element with probability `rate`, in training, and scales the rest by 1 / (1 - rate): the function
// weft::Dropout. In evaluation (Module::Eval, EvaluationGuard) the identity.
// Errors: InvalidArgument, unless 0 <= rate < 1.
class Dropout : public Module {
 public:
  Dropout(Module* parent, std::string name, double rate = 0.5);

 protected:
  DTensor Forward(const DTensor& x) override { return weft::Dropout(x, rate_); }

 private:
  double rate_;
};

class Relu : public Module {
 public:
  Relu(Module* parent, std::string name) : Module(parent, std::move(name)) {}

 protected:
  DTensor Forward(const DTensor& x) override { return weft::Relu(x); }
};

// By tanh.
class Gelu : public Module {
 public:
  Gelu(Module* parent, std::string name) : Module(parent, std::move(name)) {}

 protected:
  DTensor Forward(const DTensor& x) override { return weft::Gelu(x); }
};

// Dims `start` to `end` as one; negative ones count from the end.
// Layout: splits of the outermost of them stay, where they are whole rows of the others; see weft::Reshape.
class Flatten : public Module {
 public:
  Flatten(Module* parent, std::string name, int start = 1, int end = -1)
      : Module(parent, std::move(name)), start_(start), end_(end) {}

 protected:
  DTensor Forward(const DTensor& x) override { return weft::Flatten(x, start_, end_); }

 private:
  int start_;
  int end_;
};

}  // namespace weft::nn

#endif  // WEFT_DTENSOR_NN_LAYERS_POINTWISE_H_
