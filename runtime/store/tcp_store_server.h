#ifndef WEFT_RUNTIME_STORE_TCP_STORE_SERVER_H_
#define WEFT_RUNTIME_STORE_TCP_STORE_SERVER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/store/tcp_store_options.h"

namespace weft {

struct TcpStoreServerOptions {
  // Where it listens. "": 127.0.0.1 if there is neither a token nor TLS, else every interface.
  std::string host = {};
  int port = 0;  // 0: any that is free

  std::string run_id = {};  // clients of another run are refused
  std::string token = {};   // "": none is asked for
  std::optional<StoreTls> tls = std::nullopt;

  int64_t max_bytes = int64_t{256} << 20;  // of all keys and values
  StoreKeepalive keepalive = {};
};

// The server of a TcpStore, from the constructor to the destructor. Owns the keys and values: they end with
// it, and every client's calls then throw Aborted.
//
// A stranger who reaches the port but has not the token (or, without one, the run id) can make it neither
// keep nor tell anything; connections that do not speak its protocol are closed after seconds.
//
// Threads: any. gRPC's few threads serve any number of clients, waiting ones too.
// Errors: from the constructor: InvalidArgument for a port, token, run id, certificate or cap that cannot be;
//         FailedPrecondition if it cannot listen, naming host and port and the system's reason.
class TcpStoreServer {
 public:
  explicit TcpStoreServer(const TcpStoreServerOptions& options = {});
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  ~TcpStoreServer();

  int port() const { return port_; }

  // "127.0.0.1:29500": the host as it listens, so for clients of this machine, or of any if it was given so.
  const std::string& address() const { return address_; }

  // A line for the program to print if clients are not checked, or the token travels in clear; otherwise
  // "".
  std::string notice() const;

 private:
  class Running;

  const TcpStoreServerOptions options_;
  std::string host_;
  int port_ = 0;
  std::string address_;
  std::unique_ptr<Running> running_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_TCP_STORE_SERVER_H_
