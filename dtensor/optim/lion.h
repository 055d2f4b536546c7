#ifndef WEFT_DTENSOR_OPTIM_LION_H_
#define WEFT_DTENSOR_OPTIM_LION_H_

#include <string>
#include <utility>
#include <vector>

#include "dtensor/optim/optimizer.h"

// The sign of a momentum. With the scaled gradient g, learning rate lr and weight decay w:
//
//   c <- beta1 m + (1 - beta1) g
//   p <- p - lr (sign(c) + w p)
//   m <- beta2 m + (1 - beta2) g
//
// Every element moves by lr, so learning rates are 3 to 10 times smaller than AdamW's, and decays as much
// larger.
//
// State: one tensor per parameter, "<path>.m".
// Source: Chen et al., "Symbolic discovery of optimization algorithms", arXiv 2302.06675, algorithm 2.
namespace weft {

struct LionOptions {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  std::vector<ParameterGroup> groups = {};  // no matrix

  bool operator==(const LionOptions&) const = default;
};

class Lion : public Optimizer {
 public:
  // Errors: InvalidArgument as ResolveGroups, RequireBetas and RequireDecay, and for a group that sets a matrix.
  Lion(std::vector<Parameter*> parameters, const LionOptions& options);

 protected:
  void Update(absl::Span<const int> indices, double lr, const DTensor& scale) override;
  std::vector<std::pair<std::string, DTensor>> Moments() const override;

 private:
  LionOptions options_;
  std::vector<DTensor> momentum_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_LION_H_
