#include "parallel/style.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/base/named_table.h"
#include "runtime/tensor/shape.h"

namespace weft {
namespace {

NamedTable<StyleRules>& Table() {
  static auto* const table = new NamedTable<StyleRules>("style");
  return *table;
}

const StyleField* FindField(const StyleRules& rules, absl::string_view name) {
  for (const StyleField& field : rules.fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

std::string FieldNames(const StyleRules& rules) {
  if (rules.fields.empty()) return "it has none";
  return absl::StrCat(
      "expected ",
      absl::StrJoin(rules.fields, ", ", [](std::string* out, const StyleField& f) { out->append(f.name); }));
}

}  // namespace

Style Style::With(const std::string& field, std::optional<StyleValue> value) const {
  Style style = *this;
  if (value) style.fields.insert_or_assign(field, *std::move(value));
  return style;
}

std::string Style::ToString() const {
  std::vector<std::string> parts;
  if (!axis.empty()) parts.push_back(axis);
  const auto append = [&](const std::string& field) {
    const auto found = fields.find(field);
    if (found != fields.end()) parts.push_back(absl::StrCat(field, "=", StyleValueText(found->second)));
  };
  const StyleRules* const rules = Table().Find(name);
  if (rules != nullptr) {
    for (const StyleField& field : rules->fields) append(field.name);
  }
  for (const auto& [field, value] : fields) {  // a mistake is shown, too
    if (rules == nullptr || FindField(*rules, field) == nullptr) append(field);
  }
  return absl::StrCat(name, "(", absl::StrJoin(parts, ", "), ")");
}

std::string StyleValueText(const StyleValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const int64_t* number = std::get_if<int64_t>(&value)) return absl::StrCat(*number);
  if (const double* number = std::get_if<double>(&value)) return absl::StrCat(*number);
  if (const std::string* word = std::get_if<std::string>(&value)) return *word;
  return ToString(std::get<Placement>(value));
}

std::ostream& operator<<(std::ostream& out, const Style& style) { return out << style.ToString(); }

std::string StyleField::Expected() const {
  switch (type) {
    case Type::kFlag:
      return "true or false";
    case Type::kWholeNumber:
      return absl::StrCat("a whole number from ", least, " to ", most);
    case Type::kNumber:
      return "a number";
    case Type::kWord:
      return words.empty() ? "a word" : absl::StrJoin(words, " or ");
    case Type::kPlacement:
      return "Replicate or Shard(DIM)";
  }
  return "";
}

bool StyleField::Accepts(const StyleValue& value) const {
  switch (type) {
    case Type::kFlag:
      return std::holds_alternative<bool>(value);
    case Type::kWholeNumber: {
      const int64_t* number = std::get_if<int64_t>(&value);
      return number != nullptr && *number >= least && *number <= most;
    }
    case Type::kNumber:
      return std::holds_alternative<double>(value);
    case Type::kWord: {
      const std::string* word = std::get_if<std::string>(&value);
      if (word == nullptr) return false;
      return words.empty() ? !word->empty() : std::find(words.begin(), words.end(), *word) != words.end();
    }
    case Type::kPlacement: {
      const Placement* placement = std::get_if<Placement>(&value);
      return placement != nullptr && !std::holds_alternative<Partial>(*placement);
    }
  }
  return false;
}

std::vector<StyleField> BorderFields() {
  return {
      {.name = "input", .type = StyleField::Type::kPlacement},
      {.name = "output", .type = StyleField::Type::kPlacement},
  };
}

std::vector<StyleField> BorderFieldsAnd(std::vector<StyleField> more) {
  std::vector<StyleField> fields = BorderFields();
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

StylePins SummedOutputPins(const Style& style, bool /*is_root*/) {
  return {
      .input = style.input(),
      .output = style.output().value_or(Replicate()),
      .output_gradient = Replicate(),
  };
}

RegisterStyle::RegisterStyle(StyleRules rules) {
  const std::string name = rules.name;
  Table().Add(name, std::move(rules));
}

const StyleRules& FindStyle(absl::string_view name) { return Table().Get(name); }

void CheckStyle(const Style& style) {
  const StyleRules& rules = FindStyle(style.name);
  WEFT_REQUIRE(rules.has_axis || style.axis.empty(), style.name, " has no axis; got '", style.axis, "'");
  WEFT_REQUIRE(!rules.has_axis || !style.axis.empty(), style.name, " needs an axis of the mesh, got ''");
  for (const auto& [name, value] : style.fields) {
    const StyleField* field = FindField(rules, name);
    WEFT_REQUIRE(field != nullptr, style.name, " has no field \"", name, "\"; ", FieldNames(rules));
    WEFT_REQUIRE(field->Accepts(value), "field \"", name, "\" of ", style.name, ": expected ",
                 field->Expected(), ", got ", StyleValueText(value));
  }
  if (rules.check != nullptr) rules.check(style);
}

}  // namespace weft
