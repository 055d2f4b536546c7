#include "parallel/plan.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/base/repeated_key.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// The inverse of ToString(Placement); nothing if there is no such placement in a plan.
std::optional<StyleValue> ParsePlacement(absl::string_view text) {
  if (text == "Replicate") return StyleValue(Placement(Replicate()));
  int dim = 0;
  if (absl::ConsumePrefix(&text, "Shard(") && absl::ConsumeSuffix(&text, ")") &&
      absl::SimpleAtoi(text, &dim)) {
    return StyleValue(Placement(Shard(dim)));
  }
  return std::nullopt;
}

// The beginning of a text, in one line, with whole characters of UTF-8.
std::string Beginning(absl::string_view text) {
  size_t end = std::min<size_t>(text.size(), 40);
  while (end > 0 && end < text.size() && (text[end] & 0xC0) == 0x80) --end;
  std::string line(text.substr(0, end));
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return absl::StrCat(line, end < text.size() ? "..." : "");
}

std::string RequiredText(const Json& entry, const char* field, const std::string& where) {
  WEFT_REQUIRE(entry.contains(field), where, ": expected a text field \"", field, "\", got none");
  WEFT_REQUIRE(entry[field].is_string(), where, ": expected a text field \"", field, "\", got ",
               Beginning(entry[field].dump()));
  return entry[field].get<std::string>();
}

// Nothing if the field takes no such value.
std::optional<StyleValue> ValueFromJson(const Json& json, const StyleField& field) {
  using Type = StyleField::Type;
  std::optional<StyleValue> value;
  if (field.type == Type::kPlacement && json.is_string()) {
    value = ParsePlacement(json.get_ref<const std::string&>());
  } else if (field.type == Type::kNumber && json.is_number()) {
    value = json.get<double>();
  } else if (json.is_string()) {
    value = json.get<std::string>();
  } else if (json.is_boolean()) {
    value = json.get<bool>();
  } else if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX}) {
    return std::nullopt;
  } else if (json.is_number_integer()) {
    value = json.get<int64_t>();
  }
  if (value && !field.Accepts(*value)) value.reset();
  return value;
}

Json JsonOf(const StyleValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag;
  if (const int64_t* number = std::get_if<int64_t>(&value)) return *number;
  if (const double* number = std::get_if<double>(&value)) return *number;
  return StyleValueText(value);
}

const StyleRules& RulesFromText(const std::string& text, const std::string& where) {
  try {
    return FindStyle(text);
  } catch (const Error& error) {
    Throw(error.code(), where, ", field \"style\": ", error.message());
  }
}

std::string FieldsOf(const StyleRules& rules) {
  std::string names = rules.has_axis ? "path, style, axis" : "path, style";
  for (const StyleField& field : rules.fields) absl::StrAppend(&names, ", ", field.name);
  return names;
}

PlanEntry EntryFromJson(const Json& entry, const std::string& where) {
  WEFT_REQUIRE(entry.is_object(), where, ": expected an object, got ", entry.type_name());
  PlanEntry result;
  result.path = RequiredText(entry, "path", where);
  result.style.name = RequiredText(entry, "style", where);
  const StyleRules& rules = RulesFromText(result.style.name, where);
  if (rules.has_axis) result.style.axis = RequiredText(entry, "axis", where);
  for (const auto& [name, json] : entry.items()) {
    if (name == "path" || name == "style" || (name == "axis" && rules.has_axis)) continue;
    const auto field = std::find_if(rules.fields.begin(), rules.fields.end(),
                                    [&](const StyleField& known) { return known.name == name; });
    WEFT_REQUIRE(field != rules.fields.end(), where, ": ", rules.name, " has no field \"", name,
                 "\"; expected ", FieldsOf(rules));
    const std::optional<StyleValue> value = ValueFromJson(json, *field);
    WEFT_REQUIRE(value, where, ", field \"", name, "\": expected ", field->Expected(), ", got ", json.dump());
    result.style.fields.emplace(name, *value);
  }
  return result;
}

Json EntryToJson(const PlanEntry& entry) {
  Json object = {{"path", entry.path}, {"style", entry.style.name}};
  if (!entry.style.axis.empty()) object["axis"] = entry.style.axis;
  for (const StyleField& field : FindStyle(entry.style.name).fields) {
    const auto found = entry.style.fields.find(field.name);
    if (found != entry.style.fields.end()) object[field.name] = JsonOf(found->second);
  }
  return object;
}

Json SchedulerToJson(const SchedulerChoices& choices) {
  Json object = Json::object();
  if (choices.bucket_mb) object["bucket_mb"] = *choices.bucket_mb;
  if (choices.prefetch) object["prefetch"] = *choices.prefetch;
  if (choices.overlap) object["overlap"] = *choices.overlap;
  if (choices.find_unused) object["find_unused"] = *choices.find_unused;
  if (choices.lane_priority) object["lane_priority"] = *choices.lane_priority;
  return object;
}

// A whole number in JSON that an int holds.
bool IsInt(const Json& json) {
  if (json.is_number_unsigned()) return json.get<uint64_t>() <= uint64_t{INT32_MAX};
  return json.is_number_integer() && json.get<int64_t>() >= INT32_MIN;
}

SchedulerChoices SchedulerFromJson(const Json& object) {
  WEFT_REQUIRE(object.is_object(), "plan, key \"scheduler\": expected an object, got ", object.type_name());
  SchedulerChoices choices;
  for (const auto& [name, json] : object.items()) {
    const auto require = [&](bool fits, const char* expected) {
      WEFT_REQUIRE(fits, "scheduler, field \"", name, "\": expected ", expected, ", got ", json.dump());
    };
    if (name == "bucket_mb") {
      require(json.is_number(), "a number above 0");
      choices.bucket_mb = json.get<double>();
    } else if (name == "prefetch") {
      require(IsInt(json), "a whole number of at least 0");
      choices.prefetch = json.get<int>();
    } else if (name == "overlap" || name == "find_unused" || name == "lane_priority") {
      require(json.is_boolean(), "true or false");
      (name == "overlap"       ? choices.overlap
       : name == "find_unused" ? choices.find_unused
                               : choices.lane_priority) = json.get<bool>();
    } else {
      ThrowInvalidArgument("scheduler: unknown field \"", name,
                           "\"; expected bucket_mb, prefetch, overlap, find_unused, lane_priority");
    }
  }
  return choices;
}

}  // namespace

Plan::Plan(std::initializer_list<PlanEntry> entries) : entries_(entries) {}

Plan::Plan(std::vector<PlanEntry> entries, const SchedulerChoices& scheduler) : entries_(std::move(entries)) {
  set_scheduler(scheduler);
}

void Plan::set_scheduler(const SchedulerChoices& choices) {
  choices.Options();
  scheduler_ = choices;
}

bool Plan::UsesDType(DType dtype) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const PlanEntry& entry) {
    const StyleRules& rules = FindStyle(entry.style.name);
    if (rules.dtypes == nullptr) return false;
    const StyleDTypes given = rules.dtypes(entry.style);
    return given.param == dtype || given.reduce == dtype;
  });
}

Plan Plan::Merge(const Plan& other) const {
  std::vector<PlanEntry> entries = entries_;
  entries.insert(entries.end(), other.entries_.begin(), other.entries_.end());
  return Plan(std::move(entries), scheduler_.Merge(other.scheduler_));
}

std::string Plan::ToJson() const {
  Json entries = Json::array();
  for (const PlanEntry& entry : entries_) {
    CheckStyle(entry.style);
    entries.push_back(EntryToJson(entry));
  }
  Json document = {{"entries", std::move(entries)}};
  if (scheduler_ != SchedulerChoices()) document["scheduler"] = SchedulerToJson(scheduler_);
  return document.dump(2);
}

Plan Plan::FromJson(absl::string_view json) {
  RepeatedKey repeated;
  const Json document =
      Json::parse(json.begin(), json.end(), repeated.Callback(), /*allow_exceptions=*/false);
  WEFT_REQUIRE(!document.is_discarded(),
               "plan: not valid JSON: expected an object with an array \"entries\", got '", Beginning(json),
               "'");
  WEFT_REQUIRE(!repeated.key(), "plan: key \"", *repeated.key(), "\" is given twice");
  WEFT_REQUIRE(document.is_object() && document.contains("entries") && document["entries"].is_array(),
               "plan: expected an object with an array \"entries\", got ", Beginning(document.dump()));
  for (const auto& [key, value] : document.items()) {
    WEFT_REQUIRE(key == "entries" || key == "scheduler", "plan: unknown key \"", key,
                 "\"; expected entries, scheduler");
  }
  std::vector<PlanEntry> entries;
  for (const Json& entry : document["entries"]) {
    entries.push_back(EntryFromJson(entry, absl::StrCat("plan entry ", entries.size())));
  }
  SchedulerChoices scheduler;
  if (document.contains("scheduler")) scheduler = SchedulerFromJson(document["scheduler"]);
  return Plan(std::move(entries), scheduler);
}

std::string Plan::ToString() const {
  std::string text;
  for (const PlanEntry& entry : entries_) {
    absl::StrAppend(&text, "\"", entry.path, "\": ", entry.style.ToString(), "\n");
  }
  if (const std::string scheduler = scheduler_.ToString(); !scheduler.empty()) {
    absl::StrAppend(&text, "scheduler: ", scheduler, "\n");
  }
  return text;
}

}  // namespace weft
