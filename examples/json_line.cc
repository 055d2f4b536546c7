#include "examples/json_line.h"

#include <cstdio>

namespace weft {

void PrintJson(const nlohmann::ordered_json& object) {
  using ErrorHandler = nlohmann::ordered_json::error_handler_t;
  // dump() itself writes null for what is not finite.
  std::puts(object.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, ErrorHandler::replace).c_str());
  std::fflush(stdout);
}

}  // namespace weft
