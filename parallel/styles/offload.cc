#include "parallel/styles/offload.h"

#include "dtensor/nn/module.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

bool Says(const Style& style, const char* field) { return style.Get<bool>(field).value_or(false); }

ParameterMemory Memory(const Style& style) {
  const bool parameters = Says(style, "parameters");
  return {.state_on_host = parameters || Says(style, "state"), .value_on_host = parameters};
}

void Check(const Style& style) {
  WEFT_REQUIRE(!style.fields.empty(),
               "Offload: expected what lies in the second memory: state, parameters or activations");
}

void Apply(const Style& style, Module& /*model*/, absl::Span<Module* const> modules) {
  for (Module* module : modules) module->set_saves_on_host(style.Get<bool>("activations"));
}

const RegisterStyle kRegister({
    .name = "Offload",
    .has_axis = false,
    .fields =
        {
            {.name = "state", .type = StyleField::Type::kFlag},
            {.name = "parameters", .type = StyleField::Type::kFlag},
            {.name = "activations", .type = StyleField::Type::kFlag},
        },
    .reach = StyleReach::kBelow,
    .memory = Memory,
    .check = Check,
    .apply = Apply,
});

std::optional<StyleValue> Flag(std::optional<bool> flag) {
  if (!flag) return std::nullopt;
  return StyleValue(*flag);
}

}  // namespace

Style Offload(const OffloadOptions& options) {
  return Style{.name = "Offload"}
      .With("state", Flag(options.state))
      .With("parameters", Flag(options.parameters))
      .With("activations", Flag(options.activations));
}

}  // namespace weft
