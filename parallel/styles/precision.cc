#include "parallel/styles/precision.h"

#include <string>
#include <utility>
#include <vector>

namespace weft {
namespace {

constexpr DType kDTypes[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

StyleField DTypeField(std::string name) {
  StyleField field = {.name = std::move(name), .type = StyleField::Type::kWord};
  for (const DType dtype : kDTypes) field.words.push_back(std::string(DTypeName(dtype)));
  return field;
}

std::optional<DType> Given(const Style& style, const std::string& field) {
  const std::optional<std::string> word = style.Get<std::string>(field);
  for (const DType dtype : kDTypes) {
    if (word == DTypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

StyleDTypes DTypes(const Style& style) {
  return {.param = Given(style, "param"),
          .reduce = Given(style, "reduce"),
          .output = Given(style, "output"),
          .buffer = Given(style, "buffer")};
}

const RegisterStyle kRegister({
    .name = "Precision",
    .has_axis = false,
    .fields = {DTypeField("param"), DTypeField("reduce"), DTypeField("output"), DTypeField("buffer")},
    .reach = StyleReach::kBelow,
    .own_fields = {"output"},
    .dtypes = DTypes,
});

std::optional<StyleValue> Word(const std::optional<DType>& dtype) {
  if (!dtype) return std::nullopt;
  return StyleValue(std::string(DTypeName(*dtype)));
}

}  // namespace

Style Precision(const PrecisionOptions& options) {
  return Style{.name = "Precision"}
      .With("param", Word(options.param))
      .With("reduce", Word(options.reduce))
      .With("output", Word(options.output))
      .With("buffer", Word(options.buffer));
}

}  // namespace weft
