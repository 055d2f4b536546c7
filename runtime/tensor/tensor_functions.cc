#include "runtime/tensor/tensor_functions.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "runtime/base/error.h"

namespace weft {
namespace {

// Written during static initialisation only. In a function, so that it exists before the first registrar.
std::optional<TensorFunctions>& FunctionsOf(DeviceType type) {
  static std::array<std::optional<TensorFunctions>, std::size(kAllDeviceTypes)> table;
  return table[static_cast<size_t>(type)];
}

}  // namespace

RegisterTensorFunctions::RegisterTensorFunctions(DeviceType type, const TensorFunctions& functions) {
  if (FunctionsOf(type).has_value()) {
    // Nothing can catch an exception before main.
    std::fprintf(stderr, "weft: the tensor functions of device %s are linked into this program twice\n",
                 std::string(DeviceTypeName(type)).c_str());
    std::abort();
  }
  FunctionsOf(type) = functions;
}

const TensorFunctions& TensorFunctionsOf(DeviceType type) {
  const std::optional<TensorFunctions>& functions = FunctionsOf(type);
  if (!functions.has_value()) {
    Throw(absl::StatusCode::kFailedPrecondition, "device ", DeviceTypeName(type),
          ": this program was built without copies on it");
  }
  return *functions;
}

}  // namespace weft
