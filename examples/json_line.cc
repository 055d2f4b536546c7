#include "examples/json_line.h"

#include <cstdio>

#include "runtime/base/json_text.h"

namespace weft {

void PrintJson(const nlohmann::ordered_json& object) {
  std::puts(JsonText(object).c_str());
  std::fflush(stdout);
}

}  // namespace weft
