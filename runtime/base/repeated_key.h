// Finds a key that an object of a JSON text has twice: readers of JSON take the last of several, silently.

#ifndef WEFT_RUNTIME_BASE_REPEATED_KEY_H_
#define WEFT_RUNTIME_BASE_REPEATED_KEY_H_

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace weft {

// Of one text, while it is parsed:
//   RepeatedKey repeated;
//   Json::parse(text, repeated.Callback());
//   WEFT_REQUIRE(!repeated.key(), "key \"", *repeated.key(), "\" is given twice");
class RepeatedKey {
 public:
  // Lifetime: refers to this object.
  nlohmann::ordered_json::parser_callback_t Callback();

  // The first such key, of whichever object; nothing without one.
  const std::optional<std::string>& key() const { return key_; }

 private:
  std::vector<std::set<std::string>> seen_;  // keys of each object that is open
  std::optional<std::string> key_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_REPEATED_KEY_H_
