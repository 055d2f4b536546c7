#include "runtime/store/tcp_store_service.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"
#include "runtime/store/store_rules.h"
#include "runtime/store/tcp_wire.h"

namespace weft {
namespace {

using Context = grpc::CallbackServerContext;

grpc::Status StatusOf(const Error& error) {
  return {static_cast<grpc::StatusCode>(error.code()), error.message()};
}

// The value of a metadata entry; null if there is none.
const grpc::string_ref* Find(const Context& context, const char* header) {
  const auto found = context.client_metadata().find(header);
  return found == context.client_metadata().end() ? nullptr : &found->second;
}

// Which of its client's calls this is; none for a client that does not say.
StoreCall CallOf(const Context& context) {
  const grpc::string_ref* const client = Find(context, kClientHeader);
  const grpc::string_ref* const call = Find(context, kCallHeader);
  StoreCall result;
  if (client == nullptr || call == nullptr) return result;
  const std::pair<absl::string_view, absl::string_view> numbers =
      absl::StrSplit(absl::string_view(call->data(), call->size()), absl::MaxSplits(' ', 1));
  WEFT_REQUIRE(
      absl::SimpleAtoi(numbers.first, &result.number) && absl::SimpleAtoi(numbers.second, &result.answered),
      "a call's numbers cannot be read");
  result.client.assign(client->data(), client->size());
  return result;
}

// Runs `body`, whose Error becomes the call's status, and ends the call.
template <class Body>
grpc::ServerUnaryReactor* Answer(const TcpStoreService& service, Context* context, const Body& body) {
  grpc::Status status = service.Admit(*context);
  if (status.ok()) {
    try {
      body();
    } catch (const Error& error) {
      status = StatusOf(error);
    }
  }
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

// A call that ends when keys are there, or when its client gives up.
class WaitReactor final : public grpc::ServerUnaryReactor {
 public:
  // gRPC holds reactions back until the handler has returned, so neither OnCancel nor OnDone meets the
  // constructor.
  WaitReactor(TcpStoreService& service, const Context& context, std::vector<std::string> keys,
              std::function<void(const std::string& first)> fill)
      : space_(service.space()) {
    const grpc::Status admitted = service.Admit(context);
    if (!admitted.ok() || keys.empty()) {
      Finish(admitted);
      return;
    }
    try {
      waiter_ =
          space_.WhenThere(std::move(keys), [this, fill = std::move(fill)](const KeySpace::Value& first) {
            fill(*first);
            Finish(grpc::Status::OK);
          });
    } catch (const Error& error) {
      Finish(StatusOf(error));
    }
  }

  // At the deadline too. Either this or the callback ends the call: Cancel says who.
  void OnCancel() override {
    if (space_.Cancel(waiter_).has_value()) Finish(grpc::Status::CANCELLED);
  }

  void OnDone() override { delete this; }

 private:
  KeySpace& space_;
  KeySpace::WaiterId waiter_ = 0;
};

// A client's session: a greeting, then a reply to each request, one operation after the other, so there is
// always one whose failure ends the call.
class SessionReactor final
    : public grpc::ServerBidiReactor<tcp_store::SessionRequest, tcp_store::SessionReply> {
 public:
  SessionReactor(TcpStoreService& service, const Context& context)
      : service_(service), client_(ClientOf(context, this)) {
    grpc::Status admitted = service.Admit(context);
    try {
      if (admitted.ok()) stream_ = service.kept().Attach(client_);
    } catch (const Error& error) {
      admitted = StatusOf(error);
    }
    if (!admitted.ok()) {
      Finish(admitted);
      return;
    }
    reply_.set_store(service.kept().id());
    reply_.set_restarts_in_place(service.kept().restarts_in_place());
    StartWrite(&reply_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End();
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    reply_.Clear();
    try {
      Obey(request_);
    } catch (const Error& error) {
      reply_.set_code(static_cast<int>(error.code()));
      reply_.set_message(error.message());
    }
    StartWrite(&reply_);
  }

  // Before the operation under way fails, on another thread perhaps.
  void OnCancel() override { Detach(); }

  void OnDone() override { delete this; }

 private:
  // A client that gives no id, as one by hand may not, has one that is no other's.
  static std::string ClientOf(const Context& context, const SessionReactor* self) {
    const grpc::string_ref* const id = Find(context, kClientHeader);
    if (id != nullptr && !id->empty()) return {id->data(), id->size()};
    return absl::StrCat("#", reinterpret_cast<uintptr_t>(self));
  }

  void Obey(const tcp_store::SessionRequest& request) {
    if (request.has_last_will()) {
      return service_.kept().LeaveWill(client_, request.last_will().key(), request.last_will().value());
    }
    WEFT_REQUIRE(request.has_farewell(), "a session's request is a last will or a farewell");
    service_.kept().Farewell(client_);
  }

  void Detach() {
    if (!service_.shutting_down()) service_.kept().Detach(client_, stream_);
  }

  void End() {
    Detach();
    Finish(grpc::Status::OK);
  }

  TcpStoreService& service_;
  tcp_store::SessionRequest request_;
  tcp_store::SessionReply reply_;
  const std::string client_;
  uint64_t stream_ = 0;
};

std::vector<std::string> KeysOf(const tcp_store::Keys& keys) {
  return {keys.keys().begin(), keys.keys().end()};
}

}  // namespace

grpc::Status TcpStoreService::Admit(const Context& context) const {
  if (!options_.token.empty()) {
    const grpc::string_ref* const token = Find(context, kTokenHeader);
    if (token == nullptr || token->empty()) {
      return {grpc::StatusCode::UNAUTHENTICATED,
              "refuses this client: it asks for a token, and none was given"};
    }
    if (!SameSecret({token->data(), token->size()}, options_.token)) {
      return {grpc::StatusCode::UNAUTHENTICATED, "refuses this client: wrong token"};
    }
  }
  const grpc::string_ref* const run = Find(context, kRunHeader);
  const absl::string_view run_id = run == nullptr ? "" : absl::string_view(run->data(), run->size());
  if (options_.run_id.has_value() && run_id != *options_.run_id) {
    return {grpc::StatusCode::PERMISSION_DENIED, absl::StrCat("serves run ", QuotedKey(*options_.run_id),
                                                              ", this client is of run ", QuotedKey(run_id))};
  }
  return grpc::Status::OK;
}

grpc::ServerUnaryReactor* TcpStoreService::Set(Context* context, const tcp_store::Entry* request,
                                               tcp_store::Nothing* /*reply*/) {
  return Answer(*this, context, [&] { kept_.Set(CallOf(*context), request->key(), request->value()); });
}

grpc::ServerUnaryReactor* TcpStoreService::TryGet(Context* context, const tcp_store::Key* request,
                                                  tcp_store::Value* reply) {
  return Answer(*this, context, [&] {
    const KeySpace::Value value = space().TryGet(request->key());
    if (value != nullptr) reply->set_value(*value);
  });
}

grpc::ServerUnaryReactor* TcpStoreService::Add(Context* context, const tcp_store::Amount* request,
                                               tcp_store::Number* reply) {
  return Answer(*this, context,
                [&] { reply->set_number(kept_.Add(CallOf(*context), request->key(), request->amount())); });
}

grpc::ServerUnaryReactor* TcpStoreService::CompareSet(Context* context, const tcp_store::Exchange* request,
                                                      tcp_store::Value* reply) {
  return Answer(*this, context, [&] {
    reply->set_value(
        kept_.CompareSet(CallOf(*context), request->key(), request->expected(), request->desired()));
  });
}

grpc::ServerUnaryReactor* TcpStoreService::Delete(Context* context, const tcp_store::Key* request,
                                                  tcp_store::Found* reply) {
  return Answer(*this, context, [&] { reply->set_found(kept_.Delete(CallOf(*context), request->key())); });
}

grpc::ServerUnaryReactor* TcpStoreService::Missing(Context* context, const tcp_store::Keys* request,
                                                   tcp_store::Keys* reply) {
  return Answer(*this, context, [&] {
    for (const std::string& key : space().Missing(KeysOf(*request))) reply->add_keys(key);
  });
}

grpc::ServerUnaryReactor* TcpStoreService::Get(Context* context, const tcp_store::Key* request,
                                               tcp_store::Value* reply) {
  return new WaitReactor(*this, *context, {request->key()},
                         [reply](const std::string& value) { reply->set_value(value); });
}

grpc::ServerUnaryReactor* TcpStoreService::Wait(Context* context, const tcp_store::Keys* request,
                                                tcp_store::Nothing* /*reply*/) {
  return new WaitReactor(*this, *context, KeysOf(*request), [](const std::string& /*first*/) {});
}

grpc::ServerBidiReactor<tcp_store::SessionRequest, tcp_store::SessionReply>* TcpStoreService::Session(
    Context* context) {
  return new SessionReactor(*this, *context);
}

}  // namespace weft
