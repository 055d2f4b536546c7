// The least module with a parameter and a buffer.

#ifndef WEFT_TESTS_PARALLEL_COUNTER_H_
#define WEFT_TESTS_PARALLEL_COUNTER_H_

#include "dtensor/functions.h"
#include "dtensor/nn/module.h"

namespace weft {

class Counter : public Module {
 public:
  using Module::Module;
  ModuleBuffer seen{this, "seen", {.shape = {4}}};
  Parameter weight{this, "weight", {.shape = {4}, .initializer = Initializer::Normal(0, 1)}};

 protected:
  DTensor Forward(const DTensor& x) override { return Mul(x, weight.Value()); }
};

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_COUNTER_H_
