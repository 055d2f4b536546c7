#include "runtime/data/loader/data_position.h"

#include "nlohmann/json.hpp"
#include "runtime/base/error.h"

namespace weft {

using Json = nlohmann::ordered_json;

std::string DataPosition::ToJson() const { return Json{{"samples", samples}, {"sampler", sampler}}.dump(); }

DataPosition DataPosition::FromJson(absl::string_view json) {
  DataPosition position;
  try {
    const Json object = Json::parse(json.begin(), json.end());
    if (!object.at("samples").is_number_integer()) {
      Throw(absl::StatusCode::kDataLoss, "data position: samples: expected a whole number in ", json);
    }
    position.samples = object.at("samples");
    position.sampler = object.at("sampler");
  } catch (const Json::exception& error) {
    Throw(absl::StatusCode::kDataLoss, "data position: broken: ", error.what());
  }
  if (position.samples < 0) {
    Throw(absl::StatusCode::kDataLoss, "data position: samples: expected at least 0, got ", position.samples);
  }
  return position;
}

}  // namespace weft
