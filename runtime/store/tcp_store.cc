#include "runtime/store/tcp_store.h"

#include <utility>
#include <vector>

#include "runtime/base/clamp_timeout.h"
#include "runtime/base/error.h"
#include "runtime/store/store_rules.h"
#include "runtime/store/tcp_store.grpc.pb.h"
#include "runtime/store/tcp_store_connection.h"
#include "runtime/store/tcp_wire.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using Stub = tcp_store::StoreService::Stub;

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

TcpStore::TcpStore(absl::string_view address, const TcpStoreOptions& options) {
  RequireIdentity("token", options.token);
  RequireIdentity("run id", options.run_id);
  connection_ = std::make_unique<TcpStoreConnection>(address, options);
}

TcpStore::~TcpStore() { Farewell(); }

void TcpStore::Set(absl::string_view key, absl::string_view value) {
  connection_->Change(&Stub::Set, EntryOf(key, value));
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
  return connection_->Change(&Stub::Add, request).number();
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
  tcp_store::Value reply = connection_->Change(&Stub::CompareSet, request);
  return std::move(*reply.mutable_value());
}

bool TcpStore::Delete(absl::string_view key) {
  return connection_->Change(&Stub::Delete, KeyOf(key)).found();
}

void TcpStore::SetOnDisconnect(absl::string_view key, absl::string_view value) {
  tcp_store::SessionRequest request;
  *request.mutable_last_will() = EntryOf(key, value);
  connection_->Require(connection_->OnceThereIsRoom(
      [&] { return connection_->Exchange(request, connection_->options().call_timeout); }));
  has_wills_ = true;
}

void TcpStore::Farewell() noexcept {
  tcp_store::SessionRequest request;
  request.mutable_farewell();
  try {
    // A store with a full disk forgets no will for good.
    connection_->OnceThereIsRoom(
        [&] { return connection_->Exchange(request, std::chrono::seconds(2), /*comes_back=*/has_wills_); });
    has_wills_ = false;
  } catch (const std::exception&) {
    // The store does not have this client any more.
  }
}

bool TcpStore::AwaitServersEnd(milliseconds timeout) noexcept { return connection_->AwaitEnd(timeout); }

const std::string& TcpStore::address() const { return connection_->address(); }

}  // namespace weft
