#ifndef WEFT_RUNTIME_STORE_TCP_STORE_CONNECTION_H_
#define WEFT_RUNTIME_STORE_TCP_STORE_CONNECTION_H_

#include <grpc/support/time.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "runtime/store/store_rules.h"
#include "runtime/store/tcp_address.h"
#include "runtime/store/tcp_store.grpc.pb.h"
#include "runtime/store/tcp_store_options.h"
#include "runtime/store/tcp_store_session.h"

namespace weft {

// A TcpStore's way to its server: the channel, the session, and how to come back to a server that restarts in place. What
// a call is, the store knows.
//
// Threads: any.
// Errors:  those of TcpStore.
class TcpStoreConnection {
 public:
  using Stub = tcp_store::StoreService::Stub;
  template <class Request, class Reply>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  TcpStoreConnection(absl::string_view address, const TcpStoreOptions& options);
  ~TcpStoreConnection();

  const std::string& address() const { return address_; }
  const TcpStoreOptions& options() const { return options_; }

  // A call that changes nothing.
  template <class Reply, class Request>
  Reply Call(Method<Request, Reply> method, const Request& request) {
    Reply reply;
    Require(Try(method, request, &reply, options_.call_timeout, Deadline::kBeginsAnew, /*call=*/""));
    return reply;
  }

  // A call that changes something, once, however often it is sent.
  template <class Reply, class Request>
  Reply Change(Method<Request, Reply> method, const Request& request) {
    const Number number(this);
    Reply reply;
    Require(OnceThereIsRoom([&] {
      return Try(method, request, &reply, options_.call_timeout, Deadline::kBeginsAnew, number.header());
    }));
    return reply;
  }

  // Waits for a reply as long as `timeout`, again where gRPC gives up before: its time is what it last looked at, so either end
  // may be some milliseconds early. False: not in time.
  template <class Request, class Reply>
  bool Await(Method<Request, Reply> method, const Request& request, Reply* reply,
             std::chrono::milliseconds timeout) {
    const Clock::time_point deadline = Clock::now() + timeout;
    for (std::chrono::milliseconds left = timeout; left.count() > 0;
         left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now())) {
      const grpc::Status status = Try(method, request, reply, left, Deadline::kStays, /*call=*/"");
      if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) continue;
      Require(status);
      return true;
    }
    return false;
  }

  // Calls again while a store that restarts in place has no room, until its grace is over.
  grpc::Status OnceThereIsRoom(absl::FunctionRef<grpc::Status()> call);

  // As TcpStoreSession's; comes back to a store that restarts unless told not to.
  grpc::Status Exchange(const tcp_store::SessionRequest& request, std::chrono::milliseconds timeout,
                        bool comes_back = true);

  // True if the session ends within `timeout`.
  bool AwaitEnd(std::chrono::milliseconds timeout) { return CurrentLink().session->AwaitEnd(timeout); }

  // Throws what `status` says unless it is ok.
  void Require(const grpc::Status& status);

 private:
  using Clock = std::chrono::steady_clock;
  // What a call goes over. Shared: another thread may come back to the store meanwhile.
  struct Link {
    std::shared_ptr<Stub> stub;
    std::shared_ptr<TcpStoreSession> session;
    uint64_t number = 0;  // of the connection, from 1
  };
  // What becomes of a call's time when the connection was lost and is there again.
  enum class Deadline { kStays, kBeginsAnew };

  // The number of a call that changes something, until its answer is here.
  class Number {
   public:
    explicit Number(TcpStoreConnection* connection);
    Number(const Number&) = delete;
    Number& operator=(const Number&) = delete;
    ~Number();
    std::string header() const;

   private:
    TcpStoreConnection* const connection_;
    uint64_t number_ = 0;
  };

  // Calls until there is an answer, or no way back to the store.
  template <class Request, class Reply>
  grpc::Status Try(Method<Request, Reply> method, const Request& request, Reply* reply,
                   std::chrono::milliseconds timeout, Deadline kind, const std::string& call) {
    gpr_timespec deadline = DeadlineIn(timeout);
    for (;;) {
      Link link = CurrentLink();
      grpc::ClientContext context;
      Identify(context, call);
      context.set_deadline(deadline);
      grpc::Status status;
      {
        const TcpStoreSession::Guard guard(*link.session, context);
        reply->Clear();
        status = (link.stub.get()->*method)(&context, request, reply);
      }
      if (!IsLost(status) || !ComeBack(std::move(link))) return status;
      if (kind == Deadline::kBeginsAnew) deadline = DeadlineIn(timeout);
    }
  }

  // By the clock that nobody sets: a wall clock that jumps ends no call.
  static gpr_timespec DeadlineIn(std::chrono::milliseconds timeout) {
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(timeout.count(), GPR_TIMESPAN));
  }

  Link CurrentLink();
  void Identify(grpc::ClientContext& context, const std::string& call = "") const;
  // Whether it is the connection that failed, and not the call.
  static bool IsLost(const grpc::Status& status);
  // Opens a new session in place of `lost`'s, unless there is one already; false if that cannot be.
  bool ComeBack(Link lost);
  bool TryToComeBack();

  void Connect();
  // One attempt, which ends at the deadline.
  grpc::Status TryConnect(Clock::time_point deadline, const std::function<bool()>& gives_up);
  bool HasMoved() const;  // its name has other addresses now
  // Ends a session; `stub` is that of its channel.
  static void End(const std::shared_ptr<TcpStoreSession>& session, const std::shared_ptr<Stub>& stub);
  // Throws if the server has answered, and refused.
  void RequireAdmitted(const grpc::Status& status) const;

  const std::string address_;
  const HostAndPort host_and_port_;
  const TcpStoreOptions options_;
  const std::string id_;      // this client's
  std::mutex connect_mutex_;  // one thread at a time connects; of the following
  std::shared_ptr<Stub> stub_;
  std::string target_;             // what the host was last resolved to
  Clock::time_point resolved_at_;  // and when
  std::string store_id_;           // of the store that this is a client of
  bool restarts_in_place_ = false;
  bool gave_up_ = false;
  std::atomic<bool> said_full_ = false;

  std::mutex link_mutex_;  // never held while anything waits
  Link link_;

  std::mutex numbers_mutex_;
  uint64_t next_number_ = 1;
  std::set<uint64_t> unanswered_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_TCP_STORE_CONNECTION_H_
