#include "parallel/plan.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/tensor/shape.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// The inverse of ToString(Placement).
// Errors: InvalidArgument that starts with `where`.
Placement ParsePlacement(absl::string_view text, const std::string& where) {
  if (text == "Replicate") return Replicate();
  absl::string_view inside = text;
  int dim = 0;
  if (absl::ConsumePrefix(&inside, "Shard(") && absl::ConsumeSuffix(&inside, ")") &&
      absl::SimpleAtoi(inside, &dim)) {
    return Shard(dim);
  }
  ThrowInvalidArgument(where, ": expected Replicate or Shard(DIM), got '", text, "'");
}

std::string RequiredText(const Json& entry, const char* field, const std::string& where) {
  WEFT_REQUIRE(entry.contains(field) && entry[field].is_string(), where, ": expected a text field \"", field,
               "\"");
  return entry[field].get<std::string>();
}

std::optional<Placement> OptionalPlacement(const Json& entry, const char* field, const std::string& where) {
  if (!entry.contains(field)) return std::nullopt;
  return ParsePlacement(RequiredText(entry, field, where), absl::StrCat(where, ", field \"", field, "\""));
}

std::optional<int> OptionalDim(const Json& entry, const std::string& where) {
  if (!entry.contains("dim")) return std::nullopt;
  const Json& dim = entry["dim"];
  WEFT_REQUIRE(dim.is_number_integer() && dim >= -Shape::kMaxDims && dim < Shape::kMaxDims, where,
               ", field \"dim\": expected a whole number from ", -Shape::kMaxDims, " to ",
               Shape::kMaxDims - 1, ", got ", dim.dump());
  return dim.get<int>();
}

Style::Kind KindFromText(const std::string& text, const std::string& where) {
  try {
    return ParseStyleKind(text);
  } catch (const Error& error) {
    Throw(error.code(), where, ", field \"style\": ", error.message());
  }
}

PlanEntry EntryFromJson(const Json& entry, const std::string& where) {
  WEFT_REQUIRE(entry.is_object(), where, ": expected an object, got ", entry.type_name());
  for (const auto& [field, value] : entry.items()) {
    const bool known = field == "path" || field == "style" || field == "axis" || field == "input" ||
                       field == "output" || field == "dim";
    WEFT_REQUIRE(known, where, ": unknown field \"", field,
                 "\"; expected path, style, axis, input, output, dim");
  }
  PlanEntry result;
  result.path = RequiredText(entry, "path", where);
  result.style.kind = KindFromText(RequiredText(entry, "style", where), where);
  result.style.axis = RequiredText(entry, "axis", where);
  result.style.input = OptionalPlacement(entry, "input", where);
  result.style.output = OptionalPlacement(entry, "output", where);
  result.style.dim = OptionalDim(entry, where);
  return result;
}

}  // namespace

Plan Plan::Merge(const Plan& other) const {
  std::vector<PlanEntry> entries = entries_;
  entries.insert(entries.end(), other.entries_.begin(), other.entries_.end());
  return Plan(std::move(entries));
}

std::string Plan::ToJson() const {
  Json entries = Json::array();
  for (const PlanEntry& entry : entries_) {
    Json object = {{"path", entry.path},
                   {"style", std::string(StyleKindName(entry.style.kind))},
                   {"axis", entry.style.axis}};
    if (entry.style.input) object["input"] = weft::ToString(*entry.style.input);
    if (entry.style.output) object["output"] = weft::ToString(*entry.style.output);
    if (entry.style.dim) object["dim"] = *entry.style.dim;
    entries.push_back(std::move(object));
  }
  return Json{{"entries", std::move(entries)}}.dump(2);
}

Plan Plan::FromJson(absl::string_view json) {
  const Json document = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  WEFT_REQUIRE(!document.is_discarded(), "plan: not valid JSON");
  WEFT_REQUIRE(document.is_object() && document.contains("entries") && document["entries"].is_array(),
               "plan: expected an object with an array \"entries\"");
  std::vector<PlanEntry> entries;
  for (const Json& entry : document["entries"]) {
    entries.push_back(EntryFromJson(entry, absl::StrCat("plan entry ", entries.size())));
  }
  return Plan(std::move(entries));
}

std::string Plan::ToString() const {
  std::string text;
  for (const PlanEntry& entry : entries_) {
    absl::StrAppend(&text, "\"", entry.path, "\": ", entry.style.ToString(), "\n");
  }
  return text;
}

}  // namespace weft
