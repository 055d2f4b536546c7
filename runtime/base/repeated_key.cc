#include "runtime/base/repeated_key.h"

namespace weft {

nlohmann::ordered_json::parser_callback_t RepeatedKey::Callback() {
  using Json = nlohmann::ordered_json;
  return [this](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) seen_.emplace_back();
    if (event == Json::parse_event_t::object_end) seen_.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto key = parsed.get<std::string>();
      if (!seen_.back().insert(key).second && !key_) key_ = key;
    }
    return true;
  };
}

}  // namespace weft
