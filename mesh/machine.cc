#include "mesh/machine.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/base/repeated_key.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

Json CostToJson(const AxisCost& cost) { return {{"alpha", cost.alpha}, {"beta", cost.beta}}; }

double NumberFrom(const Json& json, absl::string_view key) {
  WEFT_REQUIRE(json.is_number(), "machine, key \"", key, "\": expected a number, got ", json.dump());
  return json.get<double>();
}

void RequireObject(const Json& json, absl::string_view key) {
  WEFT_REQUIRE(json.is_object(), "machine, key \"", key, "\": expected an object, got ", json.dump());
}

AxisCost CostFromJson(const Json& json, absl::string_view where) {
  RequireObject(json, where);
  AxisCost cost;
  for (const auto& [key, value] : json.items()) {
    WEFT_REQUIRE(key == "alpha" || key == "beta", "machine, key \"", where, "\": unknown key \"", key,
                 "\"; expected alpha, beta");
    (key == "alpha" ? cost.alpha : cost.beta) = NumberFrom(value, absl::StrCat(where, ".", key));
  }
  return cost;
}

void CheckCost(const AxisCost& cost, absl::string_view where) {
  const auto check = [&](double value, const char* field, const char* unit) {
    WEFT_REQUIRE(std::isfinite(value) && value >= 0, "machine: ", where, ".", field, " is ", value,
                 ", expected ", unit, " of at least 0");
  };
  check(cost.alpha, "alpha", "seconds");
  check(cost.beta, "beta", "seconds per byte");
}

}  // namespace

const AxisCost& Machine::Axis(absl::string_view name) const {
  const auto found = axes.find(std::string(name));
  return found == axes.end() ? other_axes : found->second;
}

void Machine::Check() const {
  for (const auto& [name, cost] : axes) CheckCost(cost, absl::StrCat("axes.", name));
  CheckCost(other_axes, "other_axes");
  WEFT_REQUIRE(std::isfinite(flops) && flops > 0, "machine: flops is ", flops, ", expected a number above 0");
  WEFT_REQUIRE(std::isfinite(bytes_per_second) && bytes_per_second > 0, "machine: bytes_per_second is ",
               bytes_per_second, ", expected a number above 0");
}

std::string Machine::ToJson() const {
  Json object = {{"axes", Json::object()},
                 {"other_axes", CostToJson(other_axes)},
                 {"flops", flops},
                 {"bytes_per_second", bytes_per_second}};
  for (const auto& [name, cost] : axes) object["axes"][name] = CostToJson(cost);
  return object.dump();
}

Machine Machine::FromJson(absl::string_view json) {
  RepeatedKey repeated;
  const Json document =
      Json::parse(json.begin(), json.end(), repeated.Callback(), /*allow_exceptions=*/false);
  WEFT_REQUIRE(!document.is_discarded(), "machine: not valid JSON");
  WEFT_REQUIRE(!repeated.key(), "machine: key \"", *repeated.key(), "\" is given twice");
  WEFT_REQUIRE(document.is_object(), "machine: expected an object, got ", document.type_name());
  Machine machine;
  for (const auto& [key, value] : document.items()) {
    if (key == "axes") {
      RequireObject(value, key);
      for (const auto& [name, cost] : value.items()) {
        machine.axes[name] = CostFromJson(cost, absl::StrCat("axes.", name));
      }
    } else if (key == "other_axes") {
      machine.other_axes = CostFromJson(value, key);
    } else if (key == "flops") {
      machine.flops = NumberFrom(value, key);
    } else if (key == "bytes_per_second") {
      machine.bytes_per_second = NumberFrom(value, key);
    } else {
      ThrowInvalidArgument("machine: unknown key \"", key,
                           "\"; expected axes, other_axes, flops, bytes_per_second");
    }
  }
  machine.Check();
  return machine;
}

std::ostream& operator<<(std::ostream& out, const Machine& machine) { return out << machine.ToJson(); }

}  // namespace weft
