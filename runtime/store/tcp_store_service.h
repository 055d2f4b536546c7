// What a TCP store's server does for one call.

#ifndef WEFT_RUNTIME_STORE_TCP_STORE_SERVICE_H_
#define WEFT_RUNTIME_STORE_TCP_STORE_SERVICE_H_

#include <atomic>
#include <optional>
#include <string>

#include "runtime/store/kept_keys.h"
#include "runtime/store/tcp_store.grpc.pb.h"

namespace weft {

struct TcpStoreServiceOptions {
  std::optional<std::string> run_id = "";  // nullopt: clients of all runs
  std::string token = {};                  // "": none is asked for
  KeptKeysOptions kept = {};
};

// The calls of tcp_store.proto over KeptKeys: each is refused unless it carries the right token and run id,
// and those that wait are callbacks, no threads.
//
// Threads:  any; gRPC's.
// Lifetime: outlives the server that it is registered with.
// Errors:   what would be thrown is the call's status, codes as absl::StatusCode. Unauthenticated for a
//           missing or wrong token, PermissionDenied for another run.
class TcpStoreService final : public tcp_store::StoreService::CallbackService {
 public:
  explicit TcpStoreService(const TcpStoreServiceOptions& options) : options_(options), kept_(options.kept) {}

  // From now on the end of a session is the server's own and sets no last will.
  void BeginShutdown() { shutting_down_ = true; }

  KeptKeys& kept() { return kept_; }
  KeySpace& space() { return kept_.space(); }
  bool shutting_down() const { return shutting_down_; }
  grpc::Status Admit(const grpc::CallbackServerContext& context) const;

  grpc::ServerUnaryReactor* Set(grpc::CallbackServerContext* context, const tcp_store::Entry* request,
                                tcp_store::Nothing* reply) override;
  grpc::ServerUnaryReactor* TryGet(grpc::CallbackServerContext* context, const tcp_store::Key* request,
                                   tcp_store::Value* reply) override;
  grpc::ServerUnaryReactor* Add(grpc::CallbackServerContext* context, const tcp_store::Amount* request,
                                tcp_store::Number* reply) override;
  grpc::ServerUnaryReactor* CompareSet(grpc::CallbackServerContext* context,
                                       const tcp_store::Exchange* request, tcp_store::Value* reply) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context, const tcp_store::Key* request,
                                   tcp_store::Found* reply) override;
  grpc::ServerUnaryReactor* Missing(grpc::CallbackServerContext* context, const tcp_store::Keys* request,
                                    tcp_store::Keys* reply) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const tcp_store::Key* request,
                                tcp_store::Value* reply) override;
  grpc::ServerUnaryReactor* Wait(grpc::CallbackServerContext* context, const tcp_store::Keys* request,
                                 tcp_store::Nothing* reply) override;
  grpc::ServerBidiReactor<tcp_store::SessionRequest, tcp_store::SessionReply>* Session(
      grpc::CallbackServerContext* context) override;

 private:
  const TcpStoreServiceOptions options_;
  KeptKeys kept_;
  std::atomic<bool> shutting_down_ = false;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_TCP_STORE_SERVICE_H_
