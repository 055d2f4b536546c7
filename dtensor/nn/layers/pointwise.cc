#include "dtensor/nn/layers/pointwise.h"

namespace weft::nn {

Dropout::Dropout(Module* parent, std::string name, double rate)
    : Module(parent, std::move(name)), rate_(rate) {
  WEFT_REQUIRE(rate >= 0 && rate < 1, "dropout '", path(), "': expected a rate in [0, 1), got ", rate);
}

}  // namespace weft::nn
