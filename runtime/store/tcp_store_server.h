// The process side of a store that ranks reach by TCP.

#ifndef WEFT_RUNTIME_STORE_TCP_STORE_SERVER_H_
#define WEFT_RUNTIME_STORE_TCP_STORE_SERVER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/store/store_journal.h"
#include "runtime/store/tcp_store_options.h"

namespace weft {

struct TcpStoreServerOptions {
  // Where it listens. "": 127.0.0.1 if there is neither a token nor TLS, else every interface.
  std::string host = {};
  int port = 0;  // 0: any that is free

  // Clients of another run are refused; nullopt: none is, and the jobs share the store by different keys.
  std::optional<std::string> run_id = "";
  std::string token = {};  // "": none is asked for
  std::optional<StoreTls> tls = std::nullopt;

  int64_t max_bytes = int64_t{256} << 20;  // of all keys and values
  StoreKeepalive keepalive = {};

  // With a journal the store restarts in place: a server that is killed at any moment and begun again with the same
  // journal, port and run id has every write that a client had an answer for, and its clients come back to it.
  std::optional<StoreJournalOptions> journal = std::nullopt;
  // How long clients of the server before may take to come back; then their last wills are set.
  std::chrono::milliseconds grace = std::chrono::seconds(60);
  int64_t compact_bytes = int64_t{1} << 20;  // KeptKeysOptions
};

// The server of a TcpStore, from the constructor to the destructor. Owns the keys and values: without a journal they end
// with it, and every client's calls then throw Aborted.
//
// A stranger who reaches the port but has not the token (or, without one, the run id) can make it neither
// keep nor tell anything; connections that do not speak its protocol are closed after seconds.
//
// Threads: any. gRPC's few threads serve any number of clients, waiting ones too.
// Errors: from the constructor: InvalidArgument for a port, token, run id, certificate or cap that cannot be;
//         FailedPrecondition if it cannot listen, naming host and port and the system's reason; the journal's.
class TcpStoreServer {
 public:
  explicit TcpStoreServer(const TcpStoreServerOptions& options = {});
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  ~TcpStoreServer();

  int port() const { return port_; }

  // "127.0.0.1:29500": the host as it listens, so for clients of this machine, or of any if it was given so.
  const std::string& address() const { return address_; }

  // What was cut from the end of the journal: a write that nobody had an answer for.
  int64_t num_cut_bytes() const;

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
