#include "ops/normalization/norm_tensors.h"

#include <iterator>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

struct NamedTensor {
  absl::string_view name;
  Tensor NormTensors::*tensor;
};
constexpr NamedTensor kNamedTensors[] = {
    {"x", &NormTensors::x},           {"w", &NormTensors::w},
    {"b", &NormTensors::b},           {"dy", &NormTensors::dy},
    {"mean", &NormTensors::mean},     {"rstd", &NormTensors::rstd},
    {"g_mean", &NormTensors::g_mean}, {"gn_mean", &NormTensors::gn_mean},
    {"y", &NormTensors::y},           {"dx", &NormTensors::dx},
    {"dw", &NormTensors::dw},         {"db", &NormTensors::db},
};

void TakeByName(absl::string_view names, absl::Span<const Tensor> tensors, NormTensors* norm) {
  const Tensor* next = tensors.data();
  for (const absl::string_view name : absl::StrSplit(names, ' ')) {
    const NamedTensor* found = kNamedTensors;
    while (found != std::end(kNamedTensors) && found->name != name) ++found;
    WEFT_CHECK(found != std::end(kNamedTensors), "a norm has no tensor '", name, "'");
    norm->*found->tensor = *next++;
  }
}

}  // namespace

NormTensors NormTensorsOf(const OpDef& op, const KernelCallBase& call) {
  NormTensors norm;
  TakeByName(op.operands(), call.inputs, &norm);
  TakeByName(op.outputs(), call.outputs, &norm);
  return norm;
}

}  // namespace weft
