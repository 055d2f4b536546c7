#include "tools/launcher/rendezvous/generation.h"

#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"

namespace weft {

using Json = nlohmann::json;

std::string GenerationEnd::ToText() const {
  const Json json = {
      {"kind", static_cast<int>(kind)}, {"restart", restart}, {"exit_code", exit_code}, {"node", node},
      {"headline", headline},           {"report", report},   {"saved", saved},         {"time_s", time_s},
      {"grace_ms", grace.count()}};
  // A worker may write anything: what is no UTF-8 is replaced.
  return JsonText(json);
}

GenerationEnd GenerationEnd::FromText(absl::string_view text) {
  try {
    const Json json = Json::parse(text.begin(), text.end());
    const int kind = json.at("kind").get<int>();
    if (kind < 0 || kind > static_cast<int>(Kind::kGrow)) {
      Throw(absl::StatusCode::kDataLoss, "a generation's end has no kind ", kind);
    }
    return {.kind = static_cast<Kind>(kind),
            .restart = json.at("restart").get<bool>(),
            .exit_code = json.at("exit_code").get<int>(),
            .node = json.at("node").get<std::string>(),
            .headline = json.at("headline").get<std::string>(),
            .report = json.at("report").get<std::string>(),
            .grace = std::chrono::milliseconds(json.at("grace_ms").get<int64_t>()),
            .saved = json.at("saved").get<bool>(),
            .time_s = json.at("time_s").get<int64_t>()};
  } catch (const Json::exception& error) {
    Throw(absl::StatusCode::kDataLoss, "a generation's end cannot be read: ", error.what());
  }
}

}  // namespace weft
