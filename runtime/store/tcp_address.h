// Host names and ports.

#ifndef WEFT_RUNTIME_STORE_TCP_ADDRESS_H_
#define WEFT_RUNTIME_STORE_TCP_ADDRESS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace weft {

struct HostAndPort {
  std::string host = {};  // without brackets
  int port = 0;
};

// Reads "node0:29500", "127.0.0.1:80", "[::1]:80".
// Errors: InvalidArgument for anything else.
HostAndPort ParseAddress(absl::string_view address);

// "127.0.0.1:80", "[::1]:80".
std::string JoinHostAndPort(absl::string_view host, int port);

// "127.0.0.1" for "localhost", which no machine needs a list of hosts for; any other host as it is.
std::string WithoutLocalhost(absl::string_view host);

// Whether `host`, a name or an address, is reached from this machine alone.
bool IsLoopback(absl::string_view host);

// What the system's resolver knows of `address`, as a target of gRPC: "ipv4:10.0.0.1:80,10.0.0.2:80". gRPC's
// own resolver knows /etc/hosts and DNS alone, not the rest of nsswitch.conf, and leaks some bytes.
//
// Cost:   as long as the system's resolver takes (resolv.conf) unless the host is a number or localhost.
// Errors: NotFound, with the resolver's reason.
std::string ResolveTarget(const HostAndPort& address);

// Whether two targets have the same addresses, in whatever order: name servers rotate them.
bool SameAddresses(absl::string_view target, absl::string_view other);

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_TCP_ADDRESS_H_
