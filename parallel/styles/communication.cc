#include "parallel/styles/communication.h"

#include <string>

#include "runtime/base/error.h"

namespace weft {
namespace {

void Check(const Style& style) { MethodOf(style); }

const RegisterStyle kRegister({
    .name = "Communication",
    .has_axis = false,
    .fields = {{.name = "method", .type = StyleField::Type::kWord}},
    .reach = StyleReach::kBelow,
    .check = Check,
});

}  // namespace

Style Communication(absl::string_view method) {
  return Style{.name = "Communication"}.With("method", StyleValue(std::string(method)));
}

CommunicationMethod MethodOf(const Style& communication) {
  const std::optional<std::string> method = communication.Get<std::string>("method");
  WEFT_REQUIRE(method, "Communication needs a method: \"bf16\", \"topk(0.01)\"");
  return CommunicationMethod::Parse(*method);
}

}  // namespace weft
