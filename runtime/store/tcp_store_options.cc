#include "runtime/store/tcp_store_options.h"

#include "runtime/base/error.h"

namespace weft {

std::optional<StoreTls> StoreTlsFrom(const std::map<std::string, std::string>& variables) {
  const auto text = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
  const StoreTls tls = {.ca_file = text("WEFT_STORE_CA"),
                        .certificate_file = text("WEFT_STORE_CERT"),
                        .key_file = text("WEFT_STORE_KEY"),
                        .server_name = text("WEFT_STORE_SERVER_NAME")};
  if (tls.ca_file.empty() && tls.certificate_file.empty() && tls.key_file.empty()) return std::nullopt;
  WEFT_REQUIRE(
      !tls.ca_file.empty() && !tls.certificate_file.empty() && !tls.key_file.empty(),
      "environment: for TLS, WEFT_STORE_CA, WEFT_STORE_CERT and WEFT_STORE_KEY are set together; given are '",
      tls.ca_file, "', '", tls.certificate_file, "' and '", tls.key_file, "'");
  return tls;
}

StoreKeepalive KeepaliveOf(std::chrono::milliseconds suspicion_time) {
  WEFT_REQUIRE(suspicion_time.count() >= 10, "a suspicion time is 10 ms or more, got ",
               suspicion_time.count(), " ms");
  const std::chrono::milliseconds interval = suspicion_time * 2 / 5;
  return {.interval = interval, .timeout = suspicion_time - interval};
}

}  // namespace weft
