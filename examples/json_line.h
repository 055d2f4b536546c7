// Lines of JSON on stdout: what --log_format=json prints.

#ifndef WEFT_EXAMPLES_JSON_LINE_H_
#define WEFT_EXAMPLES_JSON_LINE_H_

#include "nlohmann/json.hpp"

namespace weft {

// Prints `object` as one line, its keys in their order, and flushes. A number that is not finite, which JSON has not, is null;
// bytes that are no UTF-8 are replaced.
void PrintJson(const nlohmann::ordered_json& object);

}  // namespace weft

#endif  // WEFT_EXAMPLES_JSON_LINE_H_
