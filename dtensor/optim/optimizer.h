#ifndef WEFT_DTENSOR_OPTIM_OPTIMIZER_H_
#define WEFT_DTENSOR_OPTIM_OPTIMIZER_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/context/hook_list.h"
#include "dtensor/dtensor.h"
#include "dtensor/nn/parameter.h"
#include "dtensor/optim/parameter_groups.h"

namespace weft {

// Changes parameters by their gradients, on the pieces that each rank has the state (moments) of: no
// communication, where that is all that the rank has at rest. Where it is less (ZeRO-1 and -2), the changed
// pieces are gathered (Parameter::TakeUpdates). A parameter without a gradient is left alone. Weight decay applies to the
// parameters that decay: their modules say so (ParameterSpec::decays). What else differs between parameters is said by groups
// (parameter_groups.h). All are updated by one call (CallEach): on a GPU a launch for some forty of them. Parameters that are
// gathered when they have been changed (ZeRO; units of FSDP) are updated by some ten calls, of 1 to 25 MiB, in the order in
// which forward reads them: that of units, where it is known (Parameter::read_order), otherwise that of the model's parameters,
// which for the most part is the same. So the first are gathered while others are updated, and forward need not wait for all.
// Those whose state lies in the ranks' second memory (ParameterMemory) are updated on the CPU, some 25 MiB at a time, so that
// what has been changed is on its way to the device while the next are updated. Each optimizer has a file of its own.
class Optimizer {
 public:
  // `name` is what errors call it. A parameter that is listed several times is one, and tied slots stand for the
  // parameter that they are names of, once; groups mean it by its own path.
  // Errors: FailedPrecondition before the parameters are materialized; InvalidArgument as ResolveGroups.
  explicit Optimizer(std::vector<Parameter*> parameters, absl::string_view name = "Optimizer",
                     absl::Span<const ParameterGroup> groups = {});
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  const std::vector<Parameter*>& parameters() const { return parameters_; }

  // How many updates were made, which is what bias correction goes by: an i64 scalar, replicated, that lies
  // where the parameters do. Undefined without parameters. Reading it waits for the device.
  const DTensor& updates() const { return updates_there_.defined() ? updates_there_ : updates_; }

  // One update with learning rate `lr`; gradients are multiplied by `gradient_scale` (a scalar, as
  // ComputeGlobalNorm makes it; undefined means 1). If the scale is not finite, nothing changes, and
  // `updates` does not count it. Without any gradient there is no update.
  void Step(double lr, const DTensor& gradient_scale = DTensor());

  // `hook` is called before each Step, or after it, whether or not there was anything to update. In the order in which
  // they were hung; every rank hangs the same.
  HookHandle AddBeforeStep(std::function<void(Optimizer& optimizer)> hook);
  HookHandle AddAfterStep(std::function<void(Optimizer& optimizer)> hook);

  // Forgets the gradients.
  void ZeroGrad();

  // State tensors with the names they are saved under: "<parameter path>.<moment>", and "updates".
  std::vector<std::pair<std::string, DTensor>> State() const;

 protected:
  // Updates the parameters of these indices, which have gradients and whose state lies in one memory, as `scale` and
  // updates() do. If `scale` is finite, `updates` counts this update already. A step may be several calls.
  virtual void Update(absl::Span<const int> indices, double lr, const DTensor& scale) = 0;

  // Whether several calls, each for some of the parameters, cost no more than one for all. If not, there is one.
  virtual bool updates_in_parts() const { return true; }

  // The state that is kept per parameter.
  virtual std::vector<std::pair<std::string, DTensor>> Moments() const = 0;

  // During Update: what to change of the parameter of that index, and by what gradient; they lie as its state.
  const DTensor& value(int index) const { return values_[index]; }
  const DTensor& gradient(int index) const { return gradients_[index]; }
  // During Update: the gradient times `scale`, which a half may not hold: in f64 if it is, otherwise in f32.
  DTensor ScaledGradient(int index, const DTensor& scale) const;

  // For the constructor of one that keeps moments: a zero tensor for each parameter, or for those that
  // `keeps` says, which lies as its state does (ParameterLayouts), in memory of its module. Undefined for
  // the others.
  std::vector<DTensor> MakeMoment() const;
  std::vector<DTensor> MakeMoment(absl::FunctionRef<bool(int index)> keeps) const;
  // A zero tensor of another type or layout, in memory of the parameter's module.
  DTensor MakeState(int index, const TensorType& type, const Layout& layout) const;

  // For Moments: one moment under its names, "<parameter path>.<name>", of those that have it.
  void AppendMoment(absl::string_view name, const std::vector<DTensor>& moment,
                    std::vector<std::pair<std::string, DTensor>>* state) const;

  // What the groups say of the parameter of that index.
  const ParameterGroup& group(int index) const { return groups_[index]; }
  // Its learning rate where the step's is `lr`.
  double RateOf(int index, double lr) const { return lr * groups_[index].lr_scale.value_or(1); }
  // Its weight decay where the options' is `weight_decay`: 0 if it does not decay.
  double DecayOf(int index, double weight_decay) const;

 private:
  void StepBetweenHooks(double lr, const DTensor& gradient_scale);
  void UpdateThere(absl::Span<const int> indices, double lr, const DTensor& scale);
  void TakeUpdates(absl::Span<const int> indices);

  std::vector<Parameter*> parameters_;
  std::vector<ParameterGroup> groups_;  // by parameter
  DTensor updates_;
  DTensor updates_there_;           // of an Update: the same beside the state that it changes
  std::vector<DTensor> values_;     // of an Update, by index
  std::vector<DTensor> gradients_;  // likewise
  HookList<void(Optimizer&)> before_hooks_, after_hooks_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_OPTIMIZER_H_
