#ifndef WEFT_DTENSOR_OPTIM_LAMB_H_
#define WEFT_DTENSOR_OPTIM_LAMB_H_

#include <string>
#include <utility>
#include <vector>

#include "dtensor/optim/adam_rates.h"
#include "dtensor/optim/optimizer.h"

// Adam whose steps have a length in proportion to each parameter's, for large batches. For update t = 1, 2,
// ..., the scaled gradient g, learning rate lr and weight decay w, with norms over the whole parameter:
//
//   m <- beta1 m + (1 - beta1) g
//   v <- beta2 v + (1 - beta2) g^2
//   u <- (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + w p
//   p <- p - lr (|p| / |u|) u          the ratio is 1 where either norm is 0
//
// State: two tensors per parameter, "<path>.m" and "<path>.v".
// Cost:  besides the moments' pass one more tensor per parameter while it updates, and one all-reduce of two
//        numbers per parameter over the axes that split it, for all parameters together (SquareSums).
// Source: You et al., "Large batch optimization for deep learning", arXiv 1904.00962, algorithm 2, phi the
//         identity.
namespace weft {

struct LambOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
  std::vector<ParameterGroup> groups = {};  // no matrix

  bool operator==(const LambOptions&) const = default;
};

class Lamb : public Optimizer {
 public:
  // Errors: InvalidArgument as ResolveGroups, RequireBetas, RequireEps and RequireDecay, and for a group that sets a matrix.
  Lamb(std::vector<Parameter*> parameters, const LambOptions& options);

 protected:
  void Update(absl::Span<const int> indices, double lr, const DTensor& scale) override;
  bool updates_in_parts() const override { return false; }  // one all-reduce for all of them
  std::vector<std::pair<std::string, DTensor>> Moments() const override;

 private:
  // Updates the moments; -u of each.
  std::vector<DTensor> Directions(absl::Span<const int> indices, const DTensor& scale);

  LambOptions options_;
  AdamRates rates_;
  std::vector<DTensor> first_;
  std::vector<DTensor> second_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_LAMB_H_
