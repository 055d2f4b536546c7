#include "runtime/store/tcp_store_server.h"

#include <grpc/support/time.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/store/tcp_address.h"
#include "runtime/store/tcp_store_service.h"
#include "runtime/store/tcp_wire.h"

namespace weft {
namespace {

// A connection has this long to become one of gRPC, and this long to make its first call.
constexpr int kStrangersMs = 5000;

// What one connection may have under way: threads of one client that wait.
constexpr int kMostCalls = 1000;

std::string HostOf(const TcpStoreServerOptions& options) {
  if (!options.host.empty()) return WithoutLocalhost(options.host);
  return options.token.empty() && !options.tls.has_value() ? "127.0.0.1" : "0.0.0.0";
}

// Why one cannot listen there, which gRPC writes to stderr and does not tell; "" if one can.
std::string ReasonNotToListen(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (failure != 0) return gai_strerror(failure);
  std::string reason;
  const int descriptor = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
  const int yes = 1;
  if (descriptor >= 0) setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (descriptor < 0 || bind(descriptor, found->ai_addr, found->ai_addrlen) != 0 ||
      listen(descriptor, 1) != 0) {
    reason = std::strerror(errno);
  }
  if (descriptor >= 0) close(descriptor);
  freeaddrinfo(found);
  return reason;
}

}  // namespace

class TcpStoreServer::Running {
 public:
  explicit Running(const TcpStoreServerOptions& options)
      : service_({.run_id = options.run_id,
                  .token = options.token,
                  .kept = {.max_bytes = options.max_bytes,
                           .journal = options.journal,
                           .grace = options.grace,
                           .compact_bytes = options.compact_bytes}}) {
    if (options.journal.has_value()) expirer_ = std::thread([this] { ExpireNowAndThen(); });
  }

  ~Running() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    stopped_.notify_all();
    if (expirer_.joinable()) expirer_.join();
    if (server_ == nullptr) return;
    service_.BeginShutdown();
    server_->Shutdown(gpr_now(GPR_CLOCK_MONOTONIC));  // a wall clock might jump back meanwhile
  }

  // The port; 0 if it cannot listen.
  int Listen(const std::string& address, const TcpStoreServerOptions& options) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, ServerCredentialsOf(options.tls), &port);
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
    // By default two servers share a port, and each gets half of the clients.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostCalls);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kStrangersMs);
    // Clients have a session open and are never idle.
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kStrangersMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                               static_cast<int>(options.keepalive.interval.count()));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                               static_cast<int>(options.keepalive.timeout.count()));
    // Clients may ask for signs of life as often as they like.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    server_ = builder.BuildAndStart();
    return server_ == nullptr ? 0 : port;
  }

  int64_t num_cut_bytes() { return service_.kept().num_cut_bytes(); }

 private:
  void ExpireNowAndThen() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopped_.wait_for(lock, std::chrono::milliseconds(200), [this] { return stop_; })) {
      service_.kept().Expire(KeptKeys::Clock::now());
    }
  }

  TcpStoreService service_;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread expirer_;
};

TcpStoreServer::TcpStoreServer(const TcpStoreServerOptions& options)
    : options_(options), host_(HostOf(options)), running_(std::make_unique<Running>(options)) {
  WEFT_REQUIRE(options.port >= 0 && options.port <= 65535, "a store's port is 0 to 65535, got ",
               options.port);
  WEFT_REQUIRE(options.max_bytes > 0, "a store's max_bytes is at least 1, got ", options.max_bytes);
  RequireIdentity("token", options.token);
  RequireIdentity("run id", options.run_id.value_or(""));
  const std::string wanted = JoinHostAndPort(host_, options.port);
  const std::string reason = ReasonNotToListen(host_, options.port);
  if (reason.empty()) port_ = running_->Listen(wanted, options);
  if (port_ == 0) {
    Throw(absl::StatusCode::kFailedPrecondition, "the store cannot listen at ", wanted, ": ",
          reason.empty() ? "gRPC does not say why" : reason,
          options.port == 0 ? "" : absl::StrCat("; is another program on port ", options.port, "?"));
  }
  address_ = JoinHostAndPort(host_, port_);
}

TcpStoreServer::~TcpStoreServer() = default;

int64_t TcpStoreServer::num_cut_bytes() const { return running_->num_cut_bytes(); }

std::string TcpStoreServer::notice() const {
  if (options_.tls.has_value() || (IsLoopback(host_) && !options_.token.empty())) return "";
  if (!options_.token.empty()) {
    return absl::StrCat("store: listens at ", address_,
                        " with a token but without TLS: token, keys and values travel in clear");
  }
  if (IsLoopback(host_)) {
    return absl::StrCat("store: listens at ", address_,
                        ", for this machine alone, since it has neither a token nor TLS");
  }
  return absl::StrCat("store: listens at ", address_,
                      " with neither a token nor TLS: whoever reaches that port can join the job");
}

}  // namespace weft
