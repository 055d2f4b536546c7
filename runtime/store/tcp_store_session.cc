#include "runtime/store/tcp_store_session.h"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>

#include "runtime/base/clamp_timeout.h"

namespace weft {

std::shared_ptr<TcpStoreSession> TcpStoreSession::Open(tcp_store::StoreService::StubInterface& stub,
                                                       const Identify& identify) {
  std::shared_ptr<TcpStoreSession> session(new TcpStoreSession);
  session->self_ = session;
  identify(session->context_);
  stub.async()->Session(&session->context_, session.get());
  session->StartRead(&session->reply_);
  session->AddHold();  // for the writes, which do not start from a reaction
  session->StartCall();
  return session;
}

grpc::Status TcpStoreSession::AwaitGreeting(Clock::time_point deadline,
                                            const std::function<bool()>& gives_up) {
  do {
    std::unique_lock<std::mutex> lock(mutex_);
    const Clock::time_point slice = std::min(deadline, Clock::now() + std::chrono::seconds(1));
    if (WaitFor(lock, slice, [this] { return num_replies_ > 0; })) return ended_.value_or(grpc::Status::OK);
  } while (Clock::now() < deadline && !gives_up());
  Close(std::chrono::seconds(5));
  return {grpc::StatusCode::DEADLINE_EXCEEDED, "no answer"};
}

tcp_store::SessionReply TcpStoreSession::greeting() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return greeting_;
}

bool TcpStoreSession::AwaitEnd(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  return WaitFor(lock, Clock::now() + ClampTimeout(timeout), [] { return false; });
}

grpc::Status TcpStoreSession::Exchange(const tcp_store::SessionRequest& request,
                                       std::chrono::milliseconds timeout) {
  const std::lock_guard<std::mutex> exchange(exchange_mutex_);
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t num_before = num_replies_;
  // With the lock, so that the write starts before OnReadDone gives the hold back.
  if (is_reading_) {
    request_ = request;
    is_writing_ = true;
    StartWrite(&request_);
  }
  const auto replied = [this, num_before] { return num_replies_ > num_before && !is_writing_; };
  if (!WaitFor(lock, Clock::now() + ClampTimeout(timeout), replied)) {
    context_.TryCancel();
    return {grpc::StatusCode::DEADLINE_EXCEEDED, "no reply"};
  }
  if (ended_.has_value()) return {grpc::StatusCode::UNAVAILABLE, ended_->error_message()};
  return {static_cast<grpc::StatusCode>(last_reply_.code()), last_reply_.message()};
}

void TcpStoreSession::Close(std::chrono::milliseconds timeout) {
  context_.TryCancel();
  std::unique_lock<std::mutex> lock(mutex_);
  WaitFor(lock, Clock::now() + timeout, [] { return false; });
}

bool TcpStoreSession::LetGo(const std::shared_ptr<TcpStoreSession>& session,
                            std::chrono::milliseconds timeout) {
  if (session == nullptr) return true;
  const Clock::time_point give_up = Clock::now() + timeout;
  session->Close(timeout);
  // OnDone tells of the end first and lets go then.
  while (session.use_count() > 1 && Clock::now() < give_up) std::this_thread::yield();
  return session.use_count() == 1;
}

std::optional<grpc::Status> TcpStoreSession::ended() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ended_;
}

void TcpStoreSession::OnReadDone(bool ok) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ok) {
      if (num_replies_ == 0) greeting_ = reply_;
      last_reply_ = reply_;
      ++num_replies_;
    } else {
      is_reading_ = false;
    }
    changed_.notify_all();
  }
  if (ok) {
    StartRead(&reply_);
  } else {
    RemoveHold();
  }
}

void TcpStoreSession::OnWriteDone(bool /*ok*/) {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_writing_ = false;
  changed_.notify_all();
}

void TcpStoreSession::OnDone(const grpc::Status& status) {
  std::shared_ptr<TcpStoreSession> self;  // released after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  self = std::move(self_);
  // A server that ends a stream in good order while its client lives is going.
  ended_ = status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "it ended the session") : status;
  for (grpc::ClientContext* const call : calls_) call->TryCancel();
  changed_.notify_all();
}

bool TcpStoreSession::WaitFor(std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
                              const std::function<bool()>& ready) {
  return changed_.wait_until(lock, deadline, [&] { return ended_.has_value() || ready(); });
}

TcpStoreSession::Guard::Guard(TcpStoreSession& session, grpc::ClientContext& context)
    : session_(session), context_(context) {
  const std::lock_guard<std::mutex> lock(session_.mutex_);
  session_.calls_.insert(&context_);
  if (session_.ended_.has_value()) context_.TryCancel();
}

TcpStoreSession::Guard::~Guard() {
  const std::lock_guard<std::mutex> lock(session_.mutex_);
  session_.calls_.erase(&context_);
}

}  // namespace weft
