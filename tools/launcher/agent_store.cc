#include "tools/launcher/agent_store.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/store/tcp_address.h"
#include "runtime/store/tcp_store.h"
#include "tools/launcher/rendezvous/meeting_state.h"

namespace weft {
namespace {

constexpr std::chrono::milliseconds kConnectSlice{2000};
constexpr std::chrono::milliseconds kNameSlice{200};

std::string TextOf(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof(text));
  }
  return text;
}

std::set<std::string> AddressesOf(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::set<std::string> addresses;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    addresses.insert(TextOf(entry->ai_addr));
  }
  freeaddrinfo(found);
  return addresses;
}

std::set<std::string> OwnAddresses() {
  ifaddrs* found = nullptr;
  std::set<std::string> addresses;
  if (getifaddrs(&found) != 0) return addresses;
  for (const ifaddrs* entry = found; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr) addresses.insert(TextOf(entry->ifa_addr));
  }
  freeifaddrs(found);
  addresses.erase("");
  return addresses;
}

std::unique_ptr<TcpStoreServer> StartServer(const LaunchOptions& options, const std::string& run_id,
                                            const AgentStoreAccess& access) {
  const std::string host = IsLoopback(options.address) ? options.address : "0.0.0.0";
  return std::make_unique<TcpStoreServer>(
      TcpStoreServerOptions{.host = host,
                            .port = options.port,
                            .run_id = run_id,
                            .token = access.token,
                            .tls = access.tls,
                            .keepalive = KeepaliveOf(options.suspicion_time)});
}

// Waits until this machine knows an address for the options' name. A name may be misspelt, which the user
// should hear at once; or it may come later than the nodes, as names of pods do, for which name_timeout is.
void AwaitName(const LaunchOptions& options, const AgentStoreCallbacks& callbacks) {
  const auto begin = std::chrono::steady_clock::now();
  bool said = false;
  while (!callbacks.cancelled()) {
    try {
      ResolveTarget({options.address, options.port});
      return;
    } catch (const Error& error) {
      if (std::chrono::steady_clock::now() - begin >= options.name_timeout) {
        Throw(error.code(), error.message(),
              "; --rdzv_conf=name_timeout=SECONDS waits until it has an address");
      }
      if (!said) callbacks.say(absl::StrCat("waiting: ", error.message()));
      said = true;
    }
    std::this_thread::sleep_for(std::min(kNameSlice, options.name_timeout));
  }
}

// Tries in slices, since signals are looked at in between only.
std::shared_ptr<Store> Connect(const std::string& address, const LaunchOptions& options,
                               const std::string& run_id, const AgentStoreAccess& access,
                               const AgentStoreCallbacks& callbacks) {
  std::optional<StoreTls> tls = access.tls;
  // The certificate is of the name by which the nodes know the server.
  if (tls.has_value() && tls->server_name.empty()) tls->server_name = options.address;
  const auto begin = std::chrono::steady_clock::now();
  const std::chrono::milliseconds slice = std::min(kConnectSlice, options.join_timeout);
  bool said = false;
  while (!callbacks.cancelled()) {
    try {
      return std::make_shared<TcpStore>(address,
                                        TcpStoreOptions{.run_id = run_id,
                                                        .token = access.token,
                                                        .tls = tls,
                                                        .connect_timeout = slice,
                                                        .keepalive = KeepaliveOf(options.suspicion_time),
                                                        .grace = options.store_grace,
                                                        .give_up = callbacks.give_up,
                                                        .say = callbacks.warn});
    } catch (const Error& error) {
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (error.code() != absl::StatusCode::kDeadlineExceeded) throw;
      if (waited >= options.join_timeout) {
        Throw(error.code(),
              options.store_apart ? "there is no store at " : "no node holds the job's store at ", address,
              ": ", error.message());
      }
      if (!said) callbacks.say(absl::StrCat("waiting for the job's store at ", address));
      said = true;
    }
  }
  return nullptr;
}

}  // namespace

bool IsThisMachine(const std::string& host) {
  if (IsLoopback(host)) return true;
  const std::set<std::string> own = OwnAddresses();
  for (const std::string& address : AddressesOf(host)) {
    if (IsLoopback(address) || own.count(address) > 0) return true;
  }
  return false;
}

std::string NameInStore(Store& store, const std::string& run_id) {
  const std::string key = absl::StrCat(run_id, "/runs");
  for (;;) {
    const std::string runs = store.TryGet(key).value_or("");
    std::string name = runs.empty() ? run_id : absl::StrCat(run_id, ".", runs);
    const std::string state = store.TryGet(absl::StrCat(name, "/rdzv/state")).value_or("");
    if (state.empty() || MeetingState::FromText(state).closed.empty()) return name;
    int number = 0;
    WEFT_CHECK(runs.empty() || absl::SimpleAtoi(runs, &number), key, " holds ", runs);
    store.CompareSet(key, runs, absl::StrCat(number + 1));  // another node may be faster: to the same number
  }
}

AgentStore OpenAgentStore(const LaunchOptions& options, const std::string& run_id,
                          const AgentStoreAccess& access, const AgentStoreCallbacks& callbacks) {
  AgentStore job;
  job.port = options.port;
  const bool is_holder = options.meeting == Meeting::kStandalone ||
                         (options.meeting == Meeting::kStatic && options.node_rank == 0);
  if (!is_holder) AwaitName(options, callbacks);
  std::string taken;
  if (options.meeting == Meeting::kDynamic && !options.store_apart) {
    try {
      if (IsThisMachine(options.address)) job.server = StartServer(options, run_id, access);
    } catch (const Error& error) {
      // Another node of this job on the same machine was faster, or a stranger.
      if (error.code() != absl::StatusCode::kFailedPrecondition) throw;
      taken = absl::StrCat("; this node could not hold it: ", error.message());
    }
  } else if (is_holder) {
    job.server = StartServer(options, run_id, access);
  }
  if (job.server != nullptr) job.port = job.server->port();
  // The holder reaches itself even where the others' name for it does not lead back.
  const std::string host =
      job.server != nullptr && !IsLoopback(options.address) ? "127.0.0.1" : options.address;
  try {
    job.store = Connect(JoinHostAndPort(host, job.port), options, run_id, access, callbacks);
  } catch (const Error& error) {
    Throw(error.code(), error.message(), taken);
  }
  return job;
}

}  // namespace weft
