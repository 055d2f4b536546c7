#ifndef WEFT_DTENSOR_OPTIM_ADAMW_H_
#define WEFT_DTENSOR_OPTIM_ADAMW_H_

#include <string>
#include <utility>
#include <vector>

#include "dtensor/optim/optimizer.h"

// Adam with decoupled weight decay. For update t = 1, 2, ..., the scaled gradient g, learning rate lr and
// weight decay w:
//
//   p <- p - lr w p
//   m <- beta1 m + (1 - beta1) g
//   v <- beta2 v + (1 - beta2) g^2
//   p <- p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// t is `updates`: an update that skipped itself does not count.
//
// State: two tensors per parameter, "<path>.m" and "<path>.v".
// Source: Loshchilov and Hutter, "Decoupled weight decay regularization", arXiv 1711.05101; the order of
//         PyTorch's AdamW.
namespace weft {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  std::vector<ParameterGroup> groups = {};

  bool operator==(const AdamWOptions&) const = default;
};

class AdamW : public Optimizer {
 public:
  // Errors: InvalidArgument as ResolveGroups.
  AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options);

 protected:
  void Update(absl::Span<const int> indices, double lr, const DTensor& scale) override;
  std::vector<std::pair<std::string, DTensor>> Moments() const override;

 private:
  // What kAdamWRates goes by besides the step: parameters of one kind share its result.
  struct Kind {
    double lr_scale = 1;
    double beta1 = 0;
    double beta2 = 0;

    bool operator==(const Kind&) const = default;
  };

  AdamWOptions options_;
  std::vector<Kind> kinds_;
  std::vector<int> kind_of_;  // of each parameter
  std::vector<DTensor> first_;
  std::vector<DTensor> second_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_ADAMW_H_
