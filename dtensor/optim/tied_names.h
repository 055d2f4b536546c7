// The parameters that slots are names of.

#ifndef WEFT_DTENSOR_OPTIM_TIED_NAMES_H_
#define WEFT_DTENSOR_OPTIM_TIED_NAMES_H_

#include <vector>

#include "dtensor/nn/parameter.h"

namespace weft {

// `parameters`, each once, with the parameter that a tied slot is another name of (Parameter::TieTo) in its place, unless that
// is there itself. What is kept per parameter lies as that one's state does.
std::vector<Parameter*> WithoutTiedNames(const std::vector<Parameter*>& parameters);

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_TIED_NAMES_H_
