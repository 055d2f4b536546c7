#ifndef WEFT_TOOLS_LAUNCHER_AGENT_STORE_H_
#define WEFT_TOOLS_LAUNCHER_AGENT_STORE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "runtime/store/store.h"
#include "runtime/store/tcp_store_options.h"
#include "runtime/store/tcp_store_server.h"
#include "tools/launcher/launch_options.h"

namespace weft {

// The store of a job, where its launchers meet and its workers too: a client, and on the node that holds it
// the server, which lives as long as this at most: until the node has left the job.
struct AgentStore {
  std::unique_ptr<TcpStoreServer> server;  // null: another node holds it
  std::shared_ptr<Store> store;            // null: cancelled
  int port = 0;                            // for workers, beside the address in the options
};

// Who may join: the same on all nodes.
struct AgentStoreAccess {
  std::string token = {};
  std::optional<StoreTls> tls = std::nullopt;
};

// What opening a store calls back while it waits.
struct AgentStoreCallbacks {
  std::function<bool()> cancelled;              // now and then; true ends the wait
  std::function<void(const std::string&)> say;  // a line for the user: what is waited for
  // A line for the user too, from any thread: the store has no room.
  std::function<void(const std::string&)> warn = {};
  // Asked by any thread while a store apart is away or full: true where the user wants to end, and nobody shall wait for it.
  std::function<bool()> give_up = {};
};

// Opens the store at the options' address. Its server is here on a single node; on node 0 (kStatic); on a
// node whose address the endpoint names and where the port is free (kDynamic); never if the store is apart.
//
// The server listens on the address if that is this machine's alone (127.0.0.1, localhost), else on every
// interface: a name of this machine often means loopback to this machine itself.
//
// Errors: NotFound, with the resolver's reason, if the address is a name that others know and this machine
//         does not: at once, or after the options' name_timeout. FailedPrecondition if the port is taken;
//         DeadlineExceeded, naming the address, if nobody has answered there for the options' join_timeout;
//         Aborted if the store refuses this client. Null store if cancelled.
AgentStore OpenAgentStore(const LaunchOptions& options, const std::string& run_id,
                          const AgentStoreAccess& access, const AgentStoreCallbacks& callbacks);

// What job `run_id` is called in a store that outlives jobs: its own name, or, if one of that name is over, "<name>.1",
// "<name>.2"...: the first that is not over. A job that is started again is another one so, whose keys are its own.
std::string NameInStore(Store& store, const std::string& run_id);

// Whether `host`, a name or an address, means this machine.
bool IsThisMachine(const std::string& host);
}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_AGENT_STORE_H_
