#include "runtime/store/tcp_store_connection.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/error.h"
#include "runtime/base/random_id.h"
#include "runtime/store/tcp_address.h"
#include "runtime/store/tcp_wire.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

// Between attempts at a store that has no room.
constexpr milliseconds kFullPause{200};

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

}  // namespace

TcpStoreConnection::TcpStoreConnection(absl::string_view address, const TcpStoreOptions& options)
    : address_(address), host_and_port_(ParseAddress(address)), options_(options), id_(RandomId()) {
  Connect();
}

TcpStoreConnection::~TcpStoreConnection() { End(std::exchange(link_.session, nullptr), link_.stub); }

TcpStoreConnection::Number::Number(TcpStoreConnection* connection) : connection_(connection) {
  const std::lock_guard<std::mutex> lock(connection_->numbers_mutex_);
  number_ = connection_->next_number_++;
  connection_->unanswered_.insert(number_);
}

TcpStoreConnection::Number::~Number() {
  const std::lock_guard<std::mutex> lock(connection_->numbers_mutex_);
  connection_->unanswered_.erase(number_);
}

std::string TcpStoreConnection::Number::header() const {
  const std::lock_guard<std::mutex> lock(connection_->numbers_mutex_);
  return absl::StrCat(number_, " ", *connection_->unanswered_.begin());
}

TcpStoreConnection::Link TcpStoreConnection::CurrentLink() {
  const std::lock_guard<std::mutex> lock(link_mutex_);
  return link_;
}

void TcpStoreConnection::Identify(grpc::ClientContext& context, const std::string& call) const {
  if (!call.empty()) context.AddMetadata(kCallHeader, call);
  context.AddMetadata(kRunHeader, options_.run_id);
  context.AddMetadata(kClientHeader, id_);
  if (!options_.token.empty()) context.AddMetadata(kTokenHeader, options_.token);
}

grpc::Status TcpStoreConnection::Exchange(const tcp_store::SessionRequest& request, milliseconds timeout,
                                          bool comes_back) {
  for (;;) {
    Link link = CurrentLink();
    grpc::Status status = link.session->Exchange(request, timeout);
    if (!comes_back || !IsLost(status) || !ComeBack(std::move(link))) return status;
  }
}

grpc::Status TcpStoreConnection::OnceThereIsRoom(absl::FunctionRef<grpc::Status()> call) {
  const Clock::time_point deadline = Clock::now() + ClampTimeout(options_.grace);
  for (;;) {
    grpc::Status status = call();
    if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED || !restarts_in_place_) return status;
    if (Clock::now() >= deadline || (options_.give_up && options_.give_up())) return status;
    if (options_.say && !said_full_.exchange(true)) {
      options_.say(
          absl::StrCat("waiting: the store at ", address_, " has no room: ", status.error_message()));
    }
    std::this_thread::sleep_until(std::min(deadline, Clock::now() + kFullPause));
  }
}

bool TcpStoreConnection::IsLost(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    // A connection that breaks in the middle of an answer; a session's guard.
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::CANCELLED:
      return true;
    default:
      return false;
  }
}

bool TcpStoreConnection::ComeBack(Link lost) {
  const uint64_t number = lost.number;
  lost = {};  // whoever connects waits until nobody holds the old session
  const std::lock_guard<std::mutex> lock(connect_mutex_);
  Link current = CurrentLink();
  if (current.number != number) return true;  // another thread was faster
  if (!restarts_in_place_ || gave_up_ || options_.grace.count() <= 0) return false;
  // A call may fail before the stream has. If it fails alone, that is no reason to leave the stream, whose end would be
  // this client's.
  if (!current.session->AwaitEnd(options_.keepalive.interval + options_.keepalive.timeout)) return false;
  current = {};
  gave_up_ = true;  // also where this throws
  gave_up_ = !TryToComeBack();
  return !gave_up_;
}

bool TcpStoreConnection::TryToComeBack() {
  const Clock::time_point deadline = Clock::now() + ClampTimeout(options_.grace);
  const auto gives_up = [this] { return options_.give_up && options_.give_up(); };
  for (;;) {
    const grpc::Status status = TryConnect(deadline, gives_up);
    if (status.ok()) return true;
    RequireAdmitted(status);
    if (Clock::now() >= deadline || gives_up()) return false;
    std::this_thread::sleep_until(std::min(deadline, Clock::now() + milliseconds(50)));
  }
}

void TcpStoreConnection::End(const std::shared_ptr<TcpStoreSession>& session,
                             const std::shared_ptr<Stub>& stub) {
  if (TcpStoreSession::LetGo(session, std::chrono::seconds(5))) return;
  // gRPC holds on to it: so that the channel does not end with it, that never ends.
  static_cast<void>(new std::shared_ptr<Stub>(stub));
}

void TcpStoreConnection::Connect() {
  const Clock::time_point deadline = Clock::now() + ClampTimeout(options_.connect_timeout);
  std::string reason = "no answer";
  while (true) {
    const grpc::Status status = TryConnect(deadline, [] { return false; });
    if (status.ok()) break;
    RequireAdmitted(status);
    // An attempt that the deadline has cut off says less than the one before it.
    if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) reason = status.error_message();
    if (Clock::now() >= deadline) {
      Throw(absl::StatusCode::kDeadlineExceeded, "no store answers at ", address_, ", asked for ",
            Seconds(options_.connect_timeout), " (", reason, ")");
    }
    std::this_thread::sleep_until(std::min(deadline, Clock::now() + milliseconds(50)));
  }
  const tcp_store::SessionReply greeting = link_.session->greeting();
  store_id_ = greeting.store();
  restarts_in_place_ = greeting.restarts_in_place();
}

grpc::Status TcpStoreConnection::TryConnect(Clock::time_point deadline,
                                            const std::function<bool()>& gives_up) {
  // A name may come to be known, or move, while the job starts.
  if (stub_ == nullptr || Clock::now() - resolved_at_ > std::chrono::seconds(1)) {
    try {
      const std::string target = ResolveTarget(host_and_port_);
      if (!SameAddresses(target, target_)) {
        stub_ = tcp_store::StoreService::NewStub(MakeChannel(target, host_and_port_.host, options_));
        target_ = target;
      }
      resolved_at_ = Clock::now();
    } catch (const Error& error) {
      if (error.code() != absl::StatusCode::kNotFound) throw;
      return {grpc::StatusCode::UNAVAILABLE, error.message()};
    }
  }
  std::shared_ptr<TcpStoreSession> session =
      TcpStoreSession::Open(*stub_, [this](grpc::ClientContext& context) { Identify(context); });
  grpc::Status status = session->AwaitGreeting(deadline, [&] { return gives_up() || HasMoved(); });
  if (!status.ok()) {
    End(session, stub_);
    return status;
  }
  if (!store_id_.empty() && session->greeting().store() != store_id_) {
    End(session, stub_);
    Throw(absl::StatusCode::kAborted, "the store at ", address_,
          " is gone: another one answers there, which has not its keys");
  }
  Link old;
  {
    const std::lock_guard<std::mutex> lock(link_mutex_);
    const uint64_t number = link_.number + 1;
    old = std::exchange(link_, {.stub = stub_, .session = std::move(session), .number = number});
  }
  End(old.session, old.stub);
  return status;
}

bool TcpStoreConnection::HasMoved() const {
  try {
    return !SameAddresses(ResolveTarget(host_and_port_), target_);
  } catch (const Error&) {
    return false;
  }
}

void TcpStoreConnection::RequireAdmitted(const grpc::Status& status) const {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::ABORTED:
      Throw(absl::StatusCode::kAborted, "the store at ", address_, " ", status.error_message());
    case grpc::StatusCode::UNIMPLEMENTED:
      Throw(absl::StatusCode::kAborted, "what answers at ", address_,
            " is no store of this version: ", status.error_message());
    default:
      return;
  }
}

void TcpStoreConnection::Require(const grpc::Status& status) {
  if (status.ok()) return;
  RequireAdmitted(status);
  const std::optional<grpc::Status> ended = CurrentLink().session->ended();
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

}  // namespace weft
