#include "runtime/tensor/tensor_functions.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/device/device_table.h"

namespace weft {
namespace {

DeviceTable<TensorFunctions>& Functions() {
  static DeviceTable<TensorFunctions> table;
  return table;
}

}  // namespace

RegisterTensorFunctions::RegisterTensorFunctions(DeviceType type, const TensorFunctions& functions) {
  Functions().Add(type, functions,
                  absl::StrCat("the tensor functions of device ", DeviceTypeName(type), " are"));
}

const TensorFunctions& TensorFunctionsOf(DeviceType type) {
  const TensorFunctions* const functions = Functions().Find(type);
  if (functions == nullptr) {
    Throw(absl::StatusCode::kFailedPrecondition, "device ", DeviceTypeName(type),
          ": this program was built without copies on it");
  }
  return *functions;
}

}  // namespace weft
