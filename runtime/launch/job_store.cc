#include "runtime/launch/job_store.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/host_name.h"
#include "runtime/base/random_id.h"
#include "runtime/store/prefix_store.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr char kLoopback[] = "127.0.0.1";
// How often a process that waits for the server's end looks whether the job has failed.
constexpr milliseconds kLook{100};

bool OneMachine(const LaunchEnvironment& environment) {
  return environment.local_world_size == environment.world_size;
}

void WriteLine(const std::string& line) { std::fputs(absl::StrCat("weft: ", line, "\n").c_str(), stderr); }

std::string WithPort(const std::string& host, int port) {
  const bool is_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return is_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

}  // namespace

JobStore::JobStore(const LaunchEnvironment& environment)
    : launcher_keeps_it_(environment.agent_store),
      patience_(environment.agent_store ? std::nullopt : std::optional(milliseconds(0))) {
  const bool listens = environment.rank == 0 && !environment.agent_store;
  if (listens) Listen(environment, environment.token);
  // Whatever others call it: rank 0 reaches its own server by the loopback, and so does every rank
  // if all share a machine.
  const bool is_here = listens || (OneMachine(environment) && !environment.agent_store);
  Connect(environment, WithPort(is_here ? kLoopback : environment.master_addr, environment.master_port),
          environment.token);
}

JobStore::JobStore(const LaunchEnvironment& environment,
                   absl::FunctionRef<std::string(const std::string& bytes)> broadcast)
    // While rank 0 is in this world, the broadcast of the next one would run out of time.
    : launcher_keeps_it_(false), patience_(milliseconds(0)) {
  std::string told;
  if (environment.rank == 0) {
    const std::string token = environment.token.empty() ? RandomId() : environment.token;
    Listen(environment, token);
    // A token may have blanks.
    told =
        absl::StrCat(WithPort(OneMachine(environment) ? kLoopback : HostName(), server_->port()), " ", token);
  }
  told = broadcast(told);
  const size_t space = told.find(' ');
  const std::string address =
      server_ != nullptr ? WithPort(kLoopback, server_->port()) : told.substr(0, space);
  Connect(environment, address, told.substr(space + 1));
}

JobStore::JobStore(std::unique_ptr<TcpStoreServer> server, std::shared_ptr<TcpStore> client,
                   std::string prefix, milliseconds patience)
    : server_(std::move(server)),
      client_(std::move(client)),
      launcher_keeps_it_(false),
      patience_(patience),
      prefix_(std::move(prefix)),
      store_(std::make_shared<PrefixStore>(client_, prefix_)),
      run_store_(std::make_shared<PrefixStore>(client_, absl::StrCat(prefix_, "run/"))) {}

void JobStore::Farewell(absl::FunctionRef<bool()> has_failed) noexcept {
  client_->Farewell();
  if (!patience_.has_value() || server_ != nullptr) return;
  // The server ends when every process has said farewell or one has died, and they may work for long. A next world
  // that came sooner would meet this server. After a failure rank 0 may keep it for any time, and the next world has another
  // generation: the wait has an end.
  Clock::time_point deadline = Clock::time_point::max();
  do {
    if (deadline == Clock::time_point::max() && has_failed()) {
      deadline = Clock::now() + ClampTimeout(*patience_);
    }
  } while (Clock::now() < deadline && !client_->AwaitServersEnd(kLook));
}

void JobStore::Listen(const LaunchEnvironment& environment, const std::string& token) {
  server_ = std::make_unique<TcpStoreServer>(
      TcpStoreServerOptions{.host = OneMachine(environment) ? kLoopback : "0.0.0.0",
                            .port = environment.master_port,
                            .run_id = environment.run_id,
                            .token = token,
                            .tls = environment.tls,
                            .keepalive = KeepaliveOf(environment.suspicion_time)});
  if (OneMachine(environment) || server_->notice().empty()) return;
  std::fputs(absl::StrCat("weft: ", server_->notice(), "\n").c_str(), stderr);
}

void JobStore::Connect(const LaunchEnvironment& environment, const std::string& address,
                       const std::string& token) {
  std::optional<StoreTls> tls = environment.tls;
  // The certificate is of the name by which others know the server.
  if (tls.has_value() && tls->server_name.empty() && environment.has_address()) {
    tls->server_name = environment.master_addr;
  }
  client_ = std::make_shared<TcpStore>(address,
                                       TcpStoreOptions{.run_id = environment.run_id,
                                                       .token = token,
                                                       .tls = tls,
                                                       .keepalive = KeepaliveOf(environment.suspicion_time),
                                                       .grace = environment.store_grace,
                                                       .say = environment.rank == 0 ? WriteLine : nullptr});
  prefix_ = absl::StrCat(environment.run_id, "/", environment.restart_count, "/");
  store_ = std::make_shared<PrefixStore>(client_, prefix_);
  run_store_ = std::make_shared<PrefixStore>(client_, absl::StrCat(environment.run_id, "/run/"));
}

void JobStore::SetOnDisconnect(const std::string& key, const std::string& value) {
  client_->SetOnDisconnect(absl::StrCat(prefix_, key), value);
}

}  // namespace weft
