#include "parallel/styles/ignore.h"

namespace weft {
namespace {

const RegisterStyle kRegister({
    .name = "Ignore",
    .has_axis = false,
    .reach = StyleReach::kBelow,
    .leaves_out = true,
});

}  // namespace

Style Ignore() { return {.name = "Ignore"}; }

}  // namespace weft
