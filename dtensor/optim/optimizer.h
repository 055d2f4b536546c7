#ifndef WEFT_DTENSOR_OPTIM_OPTIMIZER_H_
#define WEFT_DTENSOR_OPTIM_OPTIMIZER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/dtensor.h"
#include "dtensor/nn/parameter.h"

namespace weft {

// Changes parameters by their gradients, on each rank's at-rest pieces: no communication. State (moments)
// lies as the parameter at rest. A parameter without a gradient is left alone. Weight decay applies to the
// parameters that decay: their modules say so (ParameterSpec::decays). All are updated by one call
// (CallEach): on a GPU a launch for some forty of them.
class Optimizer {
 public:
  explicit Optimizer(std::vector<Parameter*> parameters) : parameters_(std::move(parameters)) {}
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t num_steps) { num_steps_ = num_steps; }

  // One update with learning rate `lr`; gradients are multiplied by `gradient_scale` (a scalar, as
  // ClipGlobalNorm makes it; undefined means 1). If the scale is not finite, nothing changes.
  void Step(double lr, const DTensor& gradient_scale = DTensor());

  // Forgets the gradients.
  void ZeroGrad();

  // State tensors with the names they are saved under: "<parameter path>.<moment>".
  virtual std::vector<std::pair<std::string, DTensor>> State() const = 0;

 protected:
  // Updates the parameters of these numbers, which have gradients.
  virtual void Update(absl::Span<const int> numbers, double lr, const DTensor& scale) = 0;

 private:
  std::vector<Parameter*> parameters_;
  int64_t num_steps_ = 0;
};

// p -= lr * (scale * g + weight_decay * p); with momentum, the buffer b = momentum * b + g' is subtracted
// instead.
struct SgdOptions {
  double momentum = 0;
  double weight_decay = 0;

  bool operator==(const SgdOptions&) const = default;
};

class Sgd : public Optimizer {
 public:
  Sgd(std::vector<Parameter*> parameters, const SgdOptions& options);
  std::vector<std::pair<std::string, DTensor>> State() const override;

 protected:
  void Update(absl::Span<const int> numbers, double lr, const DTensor& scale) override;

 private:
  SgdOptions options_;
  std::vector<DTensor> momentum_;
};

// Adam with decoupled weight decay. Source: Loshchilov and Hutter, "Decoupled weight decay regularization",
// 2019; the order of PyTorch's AdamW.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;

  bool operator==(const AdamWOptions&) const = default;
};

class AdamW : public Optimizer {
 public:
  AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options);
  std::vector<std::pair<std::string, DTensor>> State() const override;

 protected:
  void Update(absl::Span<const int> numbers, double lr, const DTensor& scale) override;

 private:
  AdamWOptions options_;
  std::vector<DTensor> first_;
  std::vector<DTensor> second_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_OPTIMIZER_H_
