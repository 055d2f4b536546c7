#include "runtime/base/error_file.h"

#include <exception>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "runtime/base/env.h"
#include "runtime/base/json_text.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostBytes = 4096;

// What the launcher has named; empty: none.
std::string ErrorFilePath() {
  for (const std::string& variable : WholeEnvironment()) {
    if (absl::StartsWith(variable, "TORCHELASTIC_ERROR_FILE="))
      return variable.substr(variable.find('=') + 1);
  }
  return "";
}

}  // namespace

void WriteErrorFile(absl::string_view message) noexcept {
  try {
    const std::string path = ErrorFilePath();
    if (path.empty()) return;
    const Json extra = {{"timestamp", absl::StrCat(absl::ToUnixSeconds(absl::Now()))}};
    const Json error = {{"message", {{"message", std::string(message)}, {"extraInfo", extra}}}};
    std::ofstream(path) << JsonText(error);
  } catch (const std::exception&) {
    // The process fails for a better reason.
  }
}

std::string ReadErrorFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const Json error = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  // torchrun's own programs may write a text where Weft's write an object.
  const Json message = error.is_object() ? error.value("message", Json()) : Json();
  const Json said = message.is_object() ? message.value("message", Json()) : message;
  return said.is_string() ? said.get<std::string>().substr(0, kMostBytes) : "";
}

}  // namespace weft
