#include "runtime/store/tcp_store.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/store/store_rules.h"
#include "runtime/store/tcp_address.h"
#include "runtime/store/tcp_store.grpc.pb.h"
#include "runtime/store/tcp_store_session.h"
#include "runtime/store/tcp_wire.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Stub = tcp_store::StoreService::Stub;

std::string Seconds(milliseconds time) {
  return absl::StrFormat("%.3g s", static_cast<double>(time.count()) / 1e3);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const std::string& host,
                                           const TcpStoreOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
  // A connection of its own, whose end is this client's end and no other's.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A job's own machines, whatever http_proxy says.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);  // how long one attempt may take
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 250);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(options.keepalive.interval.count()));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(options.keepalive.timeout.count()));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The target has numbers, the certificate perhaps a name.
  if (options.tls.has_value()) {
    const std::string& name = options.tls->server_name;
    arguments.SetString(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, name.empty() ? host : name);
  }
  return grpc::CreateCustomChannel(target, ChannelCredentialsOf(options.tls), arguments);
}

tcp_store::Key KeyOf(absl::string_view key) {
  RequireKey(key);
  tcp_store::Key message;
  message.set_key(key.data(), key.size());
  return message;
}

tcp_store::Entry EntryOf(absl::string_view key, absl::string_view value) {
  RequireKey(key);
  RequireValue(key, value);
  tcp_store::Entry message;
  message.set_key(key.data(), key.size());
  message.set_value(value.data(), value.size());
  return message;
}

tcp_store::Keys KeysOf(absl::Span<const std::string> keys) {
  RequireKeys(keys);
  tcp_store::Keys message;
  for (const std::string& key : keys) message.add_keys(key);
  WEFT_REQUIRE(static_cast<int64_t>(message.ByteSizeLong()) <= kMaxMessageBytes, "the ", keys.size(),
               " keys of one call have together more than ", kMaxMessageBytes, " bytes");
  return message;
}

}  // namespace

class TcpStore::Connection {
 public:
  Connection(absl::string_view address, const TcpStoreOptions& options)
      : address_(address), host_and_port_(ParseAddress(address)), options_(options) {
    Connect();
  }

  ~Connection() { EndSession(); }

  const std::string& address() const { return address_; }
  const TcpStoreOptions& options() const { return options_; }
  TcpStoreSession& session() { return *session_; }

  template <class Request, class Reply>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  template <class Request, class Reply>
  grpc::Status Try(Method<Request, Reply> method, const Request& request, Reply* reply,
                   milliseconds timeout) {
    grpc::ClientContext context;
    Identify(context);
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    const TcpStoreSession::Guard guard(*session_, context);
    return (stub_.get()->*method)(&context, request, reply);
  }

  template <class Reply, class Request>
  Reply Call(Method<Request, Reply> method, const Request& request) {
    Reply reply;
    Require(Try(method, request, &reply, options_.call_timeout));
    return reply;
  }

  // Waits for a reply as long as `timeout`. False: not in time.
  template <class Request, class Reply>
  bool Await(Method<Request, Reply> method, const Request& request, Reply* reply, milliseconds timeout) {
    if (timeout.count() == 0) return false;
    const grpc::Status status = Try(method, request, reply, timeout);
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return false;
    Require(status);
    return true;
  }

  // Throws what `status` says unless it is ok.
  void Require(const grpc::Status& status) const;

 private:
  void Connect();
  void EndSession();
  // One attempt, which ends at the deadline.
  grpc::Status TryConnect(Clock::time_point deadline);
  void Identify(grpc::ClientContext& context) const {
    context.AddMetadata(kRunHeader, options_.run_id);
    if (!options_.token.empty()) context.AddMetadata(kTokenHeader, options_.token);
  }

  // Throws if the server has answered, and refused.
  void RequireAdmitted(const grpc::Status& status) const;

  const std::string address_;
  const HostAndPort host_and_port_;
  const TcpStoreOptions options_;
  std::string target_;             // what the host was last resolved to
  Clock::time_point resolved_at_;  // and when
  std::unique_ptr<Stub> stub_;
  std::shared_ptr<TcpStoreSession> session_;
};

void TcpStore::Connection::EndSession() {
  if (!TcpStoreSession::LetGo(session_, std::chrono::seconds(5))) {
    // gRPC holds on to it: so that the channel does not end with it, that never ends.
    static_cast<void>(stub_.release());
  }
  session_ = nullptr;
}

void TcpStore::Connection::Connect() {
  const Clock::time_point deadline = Clock::now() + ClampTimeout(options_.connect_timeout);
  std::string reason = "no answer";
  while (true) {
    const grpc::Status status = TryConnect(deadline);
    if (status.ok()) return;
    RequireAdmitted(status);
    // An attempt that the deadline has cut off says less than the one before it.
    if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) reason = status.error_message();
    if (Clock::now() >= deadline) {
      Throw(absl::StatusCode::kDeadlineExceeded, "no store answers at ", address_, ", asked for ",
            Seconds(options_.connect_timeout), " (", reason, ")");
    }
    std::this_thread::sleep_until(std::min(deadline, Clock::now() + milliseconds(50)));
  }
}

grpc::Status TcpStore::Connection::TryConnect(Clock::time_point deadline) {
  EndSession();
  // A name may come to be known, or move, while the job starts.
  if (stub_ == nullptr || Clock::now() - resolved_at_ > std::chrono::seconds(1)) {
    try {
      const std::string target = ResolveTarget(host_and_port_);
      if (target != target_) {
        stub_ = tcp_store::StoreService::NewStub(MakeChannel(target, host_and_port_.host, options_));
        target_ = target;
      }
      resolved_at_ = Clock::now();
    } catch (const Error& error) {
      if (error.code() != absl::StatusCode::kNotFound) throw;
      return {grpc::StatusCode::UNAVAILABLE, error.message()};
    }
  }
  session_ = TcpStoreSession::Open(*stub_, [this](grpc::ClientContext& context) { Identify(context); });
  return session_->AwaitGreeting(deadline);
}

void TcpStore::Connection::RequireAdmitted(const grpc::Status& status) const {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      Throw(absl::StatusCode::kAborted, "the store at ", address_, " ", status.error_message());
    case grpc::StatusCode::UNIMPLEMENTED:
      Throw(absl::StatusCode::kAborted, "what answers at ", address_,
            " is no store of this version: ", status.error_message());
    default:
      return;
  }
}

void TcpStore::Connection::Require(const grpc::Status& status) const {
  if (status.ok()) return;
  RequireAdmitted(status);
  const std::optional<grpc::Status> ended = session_->ended();
  if (ended.has_value() || status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    Throw(absl::StatusCode::kAborted, "the store at ", address_,
          " is gone: its server has ended or cannot be reached (",
          (ended.has_value() ? *ended : status).error_message(), ")");
  }
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      Throw(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      Throw(absl::StatusCode::kAborted, "the store at ", address_, " did not answer in ",
            Seconds(options_.call_timeout));
    default:
      Throw(absl::StatusCode::kAborted, "the store at ", address_, " failed: ", status.error_message());
  }
}

TcpStore::TcpStore(absl::string_view address, const TcpStoreOptions& options) {
  RequireIdentity("token", options.token);
  RequireIdentity("run id", options.run_id);
  connection_ = std::make_unique<Connection>(address, options);
}

TcpStore::~TcpStore() { Farewell(); }

void TcpStore::Set(absl::string_view key, absl::string_view value) {
  connection_->Call(&Stub::Set, EntryOf(key, value));
}

std::string TcpStore::Get(absl::string_view key, milliseconds timeout) {
  const tcp_store::Key request = KeyOf(key);
  tcp_store::Value reply;
  if (connection_->Await(&Stub::Get, request, &reply, ClampTimeout(timeout))) {
    return std::move(*reply.mutable_value());
  }
  // It may have come at the last moment.
  reply = connection_->Call(&Stub::TryGet, request);
  if (!reply.has_value()) ThrowMissing({std::string(key)}, timeout);
  return std::move(*reply.mutable_value());
}

std::optional<std::string> TcpStore::TryGet(absl::string_view key) {
  tcp_store::Value reply = connection_->Call(&Stub::TryGet, KeyOf(key));
  if (!reply.has_value()) return std::nullopt;
  return std::move(*reply.mutable_value());
}

int64_t TcpStore::Add(absl::string_view key, int64_t amount) {
  RequireKey(key);
  tcp_store::Amount request;
  request.set_key(key.data(), key.size());
  request.set_amount(amount);
  return connection_->Call(&Stub::Add, request).number();
}

void TcpStore::Wait(absl::Span<const std::string> keys, milliseconds timeout) {
  const tcp_store::Keys request = KeysOf(keys);
  tcp_store::Nothing reply;
  if (connection_->Await(&Stub::Wait, request, &reply, ClampTimeout(timeout))) return;
  const tcp_store::Keys missing = connection_->Call(&Stub::Missing, request);
  if (missing.keys().empty()) return;
  ThrowMissing(std::vector<std::string>(missing.keys().begin(), missing.keys().end()), timeout);
}

bool TcpStore::Check(absl::Span<const std::string> keys) {
  return connection_->Call(&Stub::Missing, KeysOf(keys)).keys().empty();
}

std::string TcpStore::CompareSet(absl::string_view key, absl::string_view expected,
                                 absl::string_view desired) {
  RequireKey(key);
  RequireValue(key, expected);
  RequireValue(key, desired);
  tcp_store::Exchange request;
  request.set_key(key.data(), key.size());
  request.set_expected(expected.data(), expected.size());
  request.set_desired(desired.data(), desired.size());
  tcp_store::Value reply = connection_->Call(&Stub::CompareSet, request);
  return std::move(*reply.mutable_value());
}

bool TcpStore::Delete(absl::string_view key) { return connection_->Call(&Stub::Delete, KeyOf(key)).found(); }

void TcpStore::SetOnDisconnect(absl::string_view key, absl::string_view value) {
  tcp_store::SessionRequest request;
  *request.mutable_last_will() = EntryOf(key, value);
  connection_->Require(connection_->session().Exchange(request, connection_->options().call_timeout));
}

void TcpStore::Farewell() noexcept {
  tcp_store::SessionRequest request;
  request.mutable_farewell();
  connection_->session().Exchange(request, std::chrono::seconds(2));
}

const std::string& TcpStore::address() const { return connection_->address(); }

}  // namespace weft
