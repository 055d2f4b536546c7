#ifndef WEFT_DTENSOR_OPTIM_ADAMW_H_
#define WEFT_DTENSOR_OPTIM_ADAMW_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "dtensor/optim/adam_rates.h"
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
  // Errors: InvalidArgument as ResolveGroups, RequireBetas, RequireEps and RequireDecay, and for a group that sets a matrix.
  AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options);

 protected:
  // For one that keeps the moments of some parameters otherwise: AdamW has those of the others, for which
  // `keeps` is true.
  AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options, absl::string_view name,
        absl::FunctionRef<bool(const Parameter&, const ParameterGroup&)> keeps);
  bool keeps_moments(int index) const { return first_[index].defined(); }

  void Update(absl::Span<const int> indices, double lr, const DTensor& scale) override;
  std::vector<std::pair<std::string, DTensor>> Moments() const override;

  // A parameter and its moments, whoever keeps them.
  struct WithMoments {
    int index = 0;
    DTensor m;
    DTensor v;
  };
  void UpdateEach(absl::Span<const WithMoments> parameters, double lr, const DTensor& scale);

 private:
  AdamWOptions options_;
  AdamRates rates_;
  std::vector<DTensor> first_;
  std::vector<DTensor> second_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_ADAMW_H_
