#ifndef WEFT_RUNTIME_LAUNCH_JOB_STORE_H_
#define WEFT_RUNTIME_LAUNCH_JOB_STORE_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"

namespace weft {

// The store of one incarnation of a job, as one of its processes has it: a client, and in rank 0's process
// the server too, unless the launcher keeps it.
//
// The server can be reached from this machine alone if all ranks are on it; otherwise from any, with a
// warning on stderr if no token is set.
class JobStore {
 public:
  // With an address in `environment`: rank 0 listens there, the others connect. Unless the launcher keeps the server, the end of
  // such a job waits for the server's, so that another may begin there; once the job has failed it does not.
  explicit JobStore(const LaunchEnvironment& environment);

  // Without: rank 0 listens on a free port, with a token of its own making, and `broadcast` takes rank 0's
  // bytes to all.
  JobStore(const LaunchEnvironment& environment,
           absl::FunctionRef<std::string(const std::string& bytes)> broadcast);

  // Of parts that are there already: `server` on one process of the job alone. The end of such a job waits for the end of
  // its server, so that another may begin at the same place; once the job has failed no longer than `patience`.
  JobStore(std::unique_ptr<TcpStoreServer> server, std::shared_ptr<TcpStore> client, std::string prefix,
           std::chrono::milliseconds patience = std::chrono::seconds(30));

  // Below "<run id>/<restart count>/": what an earlier incarnation left does not meet.
  const std::shared_ptr<Store>& store() const { return store_; }
  // Below "<run id>/run/": what an earlier incarnation left is there, if the launcher keeps the server.
  Store& run_store() const { return *run_store_; }
  bool hosts_server() const { return server_ != nullptr; }
  // The launcher keeps the server, and writes there how workers end: "exit/<rank>".
  bool launcher_keeps_it() const { return launcher_keeps_it_; }
  const std::string& address() const { return client_->address(); }

  // As TcpStore's, with keys of `store`.
  void SetOnDisconnect(const std::string& key, const std::string& value);
  // As TcpStore's, at the end of a job. `has_failed` is asked whether the job has by now, while this waits for the server's end.
  void Farewell(absl::FunctionRef<bool()> has_failed) noexcept;

 private:
  void Listen(const LaunchEnvironment& environment, const std::string& token);
  void Connect(const LaunchEnvironment& environment, const std::string& address, const std::string& token);

  std::unique_ptr<TcpStoreServer> server_;
  std::shared_ptr<TcpStore> client_;  // ends before the server
  const bool launcher_keeps_it_;
  // Of a server whose place the next job may take: how long its end is waited for once this job has failed; nullopt: it is not
  // waited for.
  const std::optional<std::chrono::milliseconds> patience_ = std::nullopt;
  std::string prefix_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<Store> run_store_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_JOB_STORE_H_
