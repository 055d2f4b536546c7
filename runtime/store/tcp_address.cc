#include "runtime/store/tcp_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// Without the scheme, which follows from them.
std::set<absl::string_view> AddressesOf(absl::string_view target) {
  return absl::StrSplit(target.substr(target.find(':') + 1), ',');
}

}  // namespace

HostAndPort ParseAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  HostAndPort result;
  WEFT_REQUIRE(colon != absl::string_view::npos && colon > 0 &&
                   absl::SimpleAtoi(address.substr(colon + 1), &result.port) && result.port > 0 &&
                   result.port <= 65535,
               "a store's address is HOST:PORT, got '", address, "'");
  absl::string_view host = address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  result.host = std::string(host);
  return result;
}

std::string JoinHostAndPort(absl::string_view host, int port) {
  const bool wants_brackets = absl::StrContains(host, ":") && !absl::StartsWith(host, "[");
  return wants_brackets ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

std::string WithoutLocalhost(absl::string_view host) {
  return std::string(host == "localhost" ? "127.0.0.1" : host);
}

bool IsLoopback(absl::string_view host) {
  // A name may begin like a number: "127.example.org".
  const bool is_number = host.find_first_not_of("0123456789.") == absl::string_view::npos;
  return host == "localhost" || host == "::1" || host == "[::1]" ||
         (absl::StartsWith(host, "127.") && is_number && !absl::EndsWith(host, "."));
}

std::string ResolveTarget(const HostAndPort& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int failure = getaddrinfo(WithoutLocalhost(address.host).c_str(), nullptr, &hints, &first);
  if (failure != 0) {
    const std::string reason = failure == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(failure);
    Throw(absl::StatusCode::kNotFound, "cannot resolve '", address.host, "': ", reason);
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(first, freeaddrinfo);
  // A target is of one family.
  for (const auto& [family, scheme] : {std::pair(AF_INET, "ipv4:"), std::pair(AF_INET6, "ipv6:")}) {
    std::vector<std::string> found;
    for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
      char text[NI_MAXHOST];
      if (entry->ai_family != family) continue;
      if (getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) !=
          0) {
        continue;
      }
      found.push_back(JoinHostAndPort(text, address.port));
    }
    if (!found.empty()) return scheme + absl::StrJoin(found, ",");
  }
  Throw(absl::StatusCode::kNotFound, "cannot resolve '", address.host, "': it has no IP address");
}

bool SameAddresses(absl::string_view target, absl::string_view other) {
  return AddressesOf(target) == AddressesOf(other);
}

}  // namespace weft
