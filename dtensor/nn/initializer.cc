#include "dtensor/nn/initializer.h"

#include "dtensor/dispatch.h"
#include "ops/creation/random.h"

namespace weft {

DTensor MakeFirstValue(const Initializer& initializer, const FirstValue& value) {
  const CreationAttributes type = {.dtype = value.type.dtype, .shape = value.type.shape};
  switch (initializer.kind) {
    case Initializer::Kind::kConstant:
      return Create(kFill, value.context, value.layout, type, {.value = initializer.a});
    case Initializer::Kind::kNormal:
      return Create(kRandomNormal, value.context, value.layout, type,
                    {.key = value.key, .mean = initializer.a, .stddev = initializer.b});
    case Initializer::Kind::kUniform:
      return Create(kRandomUniform, value.context, value.layout, type,
                    {.key = value.key, .low = initializer.a, .high = initializer.b});
    case Initializer::Kind::kMade:
      break;
  }
  WEFT_REQUIRE(initializer.maker != nullptr, "'", value.path, "': expected an initializer's maker, got none");
  return initializer.maker->Make(value);
}

}  // namespace weft
