#ifndef WEFT_RUNTIME_STORE_TCP_STORE_OPTIONS_H_
#define WEFT_RUNTIME_STORE_TCP_STORE_OPTIONS_H_

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace weft {

// Mutual TLS: both sides show a certificate that `ca_file` has signed. PEM files.
struct StoreTls {
  std::string ca_file = {};
  std::string certificate_file = {};
  std::string key_file = {};
  // For clients: the name in the server's certificate, where it is not the host that they connect to.
  std::string server_name = {};

  bool operator==(const StoreTls&) const = default;
};

// What the environment says of TLS: WEFT_STORE_CA, WEFT_STORE_CERT and WEFT_STORE_KEY name the files, and
// WEFT_STORE_SERVER_NAME the server's name. nullopt if none of the files is named.
// Errors: InvalidArgument if some of the files are named and some are not.
std::optional<StoreTls> StoreTlsFrom(const std::map<std::string, std::string>& variables);

// How a peer that vanished without a word (its machine or link is down, its process is stopped) is noticed:
// after a silence of `interval` it is asked for a sign of life, and `timeout` later it counts as gone. So
// within interval + timeout. A process that was killed is noticed at once, by its connection's end.
struct StoreKeepalive {
  std::chrono::milliseconds interval = std::chrono::seconds(2);
  std::chrono::milliseconds timeout = std::chrono::seconds(3);

  bool operator==(const StoreKeepalive&) const = default;
};

// The one by which a peer that vanished counts as gone after `suspicion_time`: two fifths of it for the silence, three for
// the answer.
// Errors: InvalidArgument below 10 ms.
StoreKeepalive KeepaliveOf(std::chrono::milliseconds suspicion_time);

// What a client of a TcpStoreServer says when it comes.
struct TcpStoreOptions {
  std::string run_id = {};  // as the server's
  std::string token = {};
  std::optional<StoreTls> tls = std::nullopt;

  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
  // For calls that do not wait for others; one that takes longer is an error.
  std::chrono::milliseconds call_timeout = std::chrono::seconds(30);
  StoreKeepalive keepalive = {};

  // How long to try to come back to a store that restarts in place (TcpStoreServerOptions::journal). Of no effect with any
  // other store, which is lost with its server.
  std::chrono::milliseconds grace = std::chrono::seconds(60);
  // Asked now and then while the store is away or full, by any thread; true gives it up. Empty: never.
  std::function<bool()> give_up = {};
  // Told, once, that such a store has no room, for which calls wait as long. Any thread. Empty: nobody is.
  std::function<void(const std::string& line)> say = {};
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_TCP_STORE_OPTIONS_H_
