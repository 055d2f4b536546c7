// JSON that may hold any bytes, as a text.

#ifndef WEFT_RUNTIME_BASE_JSON_TEXT_H_
#define WEFT_RUNTIME_BASE_JSON_TEXT_H_

#include <string>

#include "nlohmann/json.hpp"

namespace weft {

// What `json` is as a text, of which bytes that are no UTF-8 become U+FFFD: dump() throws for them. For what people and other programs
// read; of names that have to come back as they were, IsUtf8 (runtime/data/utf8.h) asks first. A number that is not finite is null.
//
// `indent`: blanks per level, a line per value; -1: all on one line.
std::string JsonText(const nlohmann::json& json, int indent = -1);
std::string JsonText(const nlohmann::ordered_json& json, int indent = -1);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_JSON_TEXT_H_
