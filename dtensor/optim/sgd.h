#ifndef WEFT_DTENSOR_OPTIM_SGD_H_
#define WEFT_DTENSOR_OPTIM_SGD_H_

#include <string>
#include <utility>
#include <vector>

#include "dtensor/optim/optimizer.h"

// Stochastic gradient descent. With the scaled gradient g, learning rate lr, weight decay w and momentum m:
//
//   g <- g + w p
//   b <- m b + g          b is 0 at first; without momentum, b is g and nothing is kept
//   p <- p - lr b         with Nesterov's momentum p <- p - lr (g + m b)
//
// State: with momentum one tensor per parameter, "<path>.momentum".
// Source: the order of PyTorch's SGD, without dampening.
namespace weft {

struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;  // needs a momentum
  double weight_decay = 0;
  std::vector<ParameterGroup> groups = {};  // no betas, no matrix

  bool operator==(const SgdOptions&) const = default;
};

class Sgd : public Optimizer {
 public:
  // Errors: InvalidArgument as ResolveGroups and RequireDecay, and for a group that sets a beta or a matrix, a momentum
  //         outside [0, 1), or nesterov without a momentum.
  Sgd(std::vector<Parameter*> parameters, const SgdOptions& options);

 protected:
  void Update(absl::Span<const int> indices, double lr, const DTensor& scale) override;
  std::vector<std::pair<std::string, DTensor>> Moments() const override;

 private:
  SgdOptions options_;
  std::vector<DTensor> momentum_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_SGD_H_
