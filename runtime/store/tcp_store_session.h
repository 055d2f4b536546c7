#ifndef WEFT_RUNTIME_STORE_TCP_STORE_SESSION_H_
#define WEFT_RUNTIME_STORE_TCP_STORE_SESSION_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>

#include "runtime/store/tcp_store.grpc.pb.h"

namespace weft {

// The client's side of a session (tcp_store.proto): its end tells that the server is gone, and then cancels
// the client's calls that are under way, so that none waits for a server that no longer is.
//
// Threads:  any; reactions run on gRPC's.
// Lifetime: shared; gRPC holds it too until the stream has ended.
class TcpStoreSession final
    : public grpc::ClientBidiReactor<tcp_store::SessionRequest, tcp_store::SessionReply> {
 public:
  using Clock = std::chrono::steady_clock;
  // Puts a client's token and run id into a call.
  using Identify = std::function<void(grpc::ClientContext&)>;

  static std::shared_ptr<TcpStoreSession> Open(tcp_store::StoreService::StubInterface& stub,
                                               const Identify& identify);

  // Ok once the server has greeted; else why it has not, which ends the session. Asks each second whether to give up. A
  // server that has the session may take its end for its client's, so an attempt is not to be cut short and begun again.
  grpc::Status AwaitGreeting(Clock::time_point deadline, const std::function<bool()>& gives_up);

  // The server's first reply.
  tcp_store::SessionReply greeting() const;

  // True if the session ends within `timeout`.
  bool AwaitEnd(std::chrono::milliseconds timeout);

  // Sends a request and returns what the server has replied; without a reply in time the session ends.
  grpc::Status Exchange(const tcp_store::SessionRequest& request, std::chrono::milliseconds timeout);

  // Cancels the stream and waits for its end.
  void Close(std::chrono::milliseconds timeout);

  // Closes `session`, which may be null, and waits until gRPC has let go of it too: its end may then be the
  // channel's, which gRPC's own threads must not bring about, since they would wait for themselves. False if
  // gRPC still holds it after `timeout`.
  static bool LetGo(const std::shared_ptr<TcpStoreSession>& session, std::chrono::milliseconds timeout);

  // Why the session has ended, if it has.
  std::optional<grpc::Status> ended() const;

  // While it lives, the end of the session cancels the call of `context`.
  class Guard {
   public:
    Guard(TcpStoreSession& session, grpc::ClientContext& context);
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ~Guard();

   private:
    TcpStoreSession& session_;
    grpc::ClientContext& context_;
  };

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  TcpStoreSession() = default;

  // With the lock: whether `ready` or the end came before the deadline.
  bool WaitFor(std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
               const std::function<bool()>& ready);

  grpc::ClientContext context_;
  tcp_store::SessionRequest request_;
  tcp_store::SessionReply reply_;  // where gRPC reads to
  std::mutex exchange_mutex_;      // one request at a time

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<TcpStoreSession> self_;
  int64_t num_replies_ = 0;
  tcp_store::SessionReply greeting_;
  tcp_store::SessionReply last_reply_;
  bool is_writing_ = false;
  bool is_reading_ = true;
  std::optional<grpc::Status> ended_;
  std::unordered_set<grpc::ClientContext*> calls_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_TCP_STORE_SESSION_H_
