#ifndef WEFT_DTENSOR_NN_MODULE_TYPE_H_
#define WEFT_DTENSOR_NN_MODULE_TYPE_H_

#include <string>

#include "dtensor/nn/module.h"

namespace weft {

// The name of a module's class, without namespaces: "Linear".
std::string ModuleTypeName(const Module& module);

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_MODULE_TYPE_H_
