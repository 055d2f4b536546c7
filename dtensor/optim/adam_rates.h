// What Adam's updates are corrected by, once per update for all parameters of one kind.

#ifndef WEFT_DTENSOR_OPTIM_ADAM_RATES_H_
#define WEFT_DTENSOR_OPTIM_ADAM_RATES_H_

#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/optim/parameter_groups.h"

namespace weft {

// What kAdamWRates goes by besides the step: parameters of one kind share its result.
struct AdamKind {
  double lr_scale = 1;
  double beta1 = 0;
  double beta2 = 0;

  bool operator==(const AdamKind&) const = default;
};

// The kinds of an optimizer's parameters, and the rates of an update.
class AdamRates {
 public:
  // The next parameter's.
  void Add(const AdamKind& kind);
  const AdamKind& kind(int index) const { return kinds_[kind_of_[index]]; }

  // Begins the update that `updates` counts, of learning rate `lr`.
  void Begin(const DTensor& updates, double lr);
  // kAdamWRates of the parameter of that index in this update, made when the first of its kind is asked for.
  const DTensor& Of(int index);
  // Lets go of them.
  void End() { rates_.clear(); }

 private:
  std::vector<AdamKind> kinds_;
  std::vector<int> kind_of_;  // of each parameter
  DTensor updates_;
  double lr_ = 0;
  std::vector<DTensor> rates_;  // by kind
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_ADAM_RATES_H_
