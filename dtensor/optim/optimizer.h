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
  // Errors: FailedPrecondition before the parameters are materialized.
  explicit Optimizer(std::vector<Parameter*> parameters);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  const std::vector<Parameter*>& parameters() const { return parameters_; }

  // How many updates were made, which is what bias correction goes by: an i64 scalar, replicated, that lies
  // where the parameters do. Undefined without parameters. Reading it waits for the device.
  const DTensor& updates() const { return updates_; }

  // One update with learning rate `lr`; gradients are multiplied by `gradient_scale` (a scalar, as
  // ComputeGlobalNorm makes it; undefined means 1). If the scale is not finite, nothing changes, and
  // `updates` does not count it. Without any gradient there is no update.
  void Step(double lr, const DTensor& gradient_scale = DTensor());

  // Forgets the gradients.
  void ZeroGrad();

  // State tensors with the names they are saved under: "<parameter path>.<moment>", and "updates".
  std::vector<std::pair<std::string, DTensor>> State() const;

 protected:
  // Updates the parameters of these indices, which have gradients. If `scale` is finite, `updates` counts
  // this update already.
  virtual void Update(absl::Span<const int> indices, double lr, const DTensor& scale) = 0;

  // The state that lies as the parameters do.
  virtual std::vector<std::pair<std::string, DTensor>> Moments() const = 0;

 private:
  std::vector<Parameter*> parameters_;
  DTensor updates_;
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

 protected:
  void Update(absl::Span<const int> indices, double lr, const DTensor& scale) override;
  std::vector<std::pair<std::string, DTensor>> Moments() const override;

 private:
  SgdOptions options_;
  std::vector<DTensor> momentum_;
};

// Adam with decoupled weight decay.
// Source: Loshchilov and Hutter, "Decoupled weight decay regularization", 2019; the order of PyTorch's AdamW.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;

  bool operator==(const AdamWOptions&) const = default;
};

class AdamW : public Optimizer {
 public:
  AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options);

 protected:
  void Update(absl::Span<const int> indices, double lr, const DTensor& scale) override;
  std::vector<std::pair<std::string, DTensor>> Moments() const override;

 private:
  AdamWOptions options_;
  std::vector<DTensor> first_;
  std::vector<DTensor> second_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_OPTIMIZER_H_
