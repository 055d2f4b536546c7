#include "tools/launcher/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/open_file_limit.h"
#include "runtime/base/random_id.h"
#include "runtime/store/prefix_store.h"
#include "tools/launcher/agent.h"
#include "tools/launcher/agent_store.h"
#include "tools/launcher/processes/descendants.h"
#include "tools/launcher/processes/guard.h"
#include "tools/launcher/rendezvous/single_node_rendezvous.h"
#include "tools/launcher/rendezvous/store_rendezvous.h"
#include "tools/launcher/workers/snapshot_segments.h"

namespace weft {
namespace {

// By any thread, past the console, which is the main thread's.
void WriteLine(const std::string& line) {
  const std::string whole = absl::StrCat("weft_run: ", line, "\n");
  if (write(STDERR_FILENO, whole.data(), whole.size()) < 0) return;  // nobody reads it
}

// The folder that holds a run's logs; empty: none are wanted.
std::string LogFolder(const LaunchOptions& options, const std::string& run_id, Console* console) {
  std::string folder = options.log_dir;
  if (folder.empty()) {
    if (!options.tee) return "";
    char name[] = "/tmp/weft_run.XXXXXX";
    if (mkdtemp(name) == nullptr) {
      Throw(absl::StatusCode::kResourceExhausted,
            "--tee: cannot make a folder under /tmp: ", strerror(errno));
    }
    folder = name;
    console->Say(absl::StrCat("logs are in ", folder));
  }
  return absl::StrCat(folder, "/", run_id);
}

std::unique_ptr<Rendezvous> MakeRendezvous(const LaunchOptions& options, const std::string& run_id,
                                           const std::string& node_id, const AgentStore& job,
                                           Console* console) {
  const auto has_saved = [store = job.store, run_id](int64_t generation) {
    return store->TryGet(absl::StrCat(run_id, "/", generation, "/user/weft/saved")).has_value();
  };
  if (options.meeting == Meeting::kStandalone) {
    return std::make_unique<SingleNodeRendezvous>(options.workers_per_node, options.max_restarts,
                                                  options.address, job.port, has_saved);
  }
  const bool fixed = options.meeting == Meeting::kStatic;
  return std::make_unique<StoreRendezvous>(
      std::make_shared<PrefixStore>(job.store, absl::StrCat(run_id, "/rdzv/")),
      StoreRendezvousOptions{.id = node_id,
                             .host = HostName(),
                             .fixed_rank = fixed ? options.node_rank : -1,
                             .min_nodes = options.min_nodes,
                             .max_nodes = options.max_nodes,
                             .workers_per_node = options.workers_per_node,
                             .max_restarts = options.max_restarts,
                             .master_addr = options.address,
                             .master_port = job.port,
                             .poll = options.monitor_interval,
                             .beat = options.suspicion_time / 10,
                             .silence = options.suspicion_time,
                             .join_timeout = options.join_timeout,
                             .last_call = options.last_call,
                             .say = [console](const std::string& line) { console->Say(line); },
                             .has_saved = has_saved,
                             .holds_store = job.server != nullptr,
                             .store_apart = options.store_apart});
}

// A file that is opened later must not become this program's stdout: whoever closed a stream gets /dev/null.
void OpenClosedStreams() {
  for (int fd = 0; fd <= 2; ++fd) {
    // The lowest number that is free is taken, which is fd.
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) return;
  }
}

int RunAgent(const LaunchOptions& options) {
  SignalSource signals;
  AdoptOrphans();
  Console console;
  const std::vector<std::string> inherited = WholeEnvironment();
  const bool alone = options.meeting == Meeting::kStandalone;
  std::string run_id = options.run_id.empty() ? RandomId() : options.run_id;
  AgentStoreAccess access = {.token = ValueOf(inherited, "WEFT_STORE_TOKEN"),
                             .tls = StoreTlsFrom(LauncherVariables())};
  // Other users of this machine reach its loopback too.
  if (access.token.empty() && alone) access.token = RandomId();

  int stop_signal = 0;
  const auto cancelled = [&] {
    for (const ReceivedSignal& signal : signals.Take()) {
      if (SignalSource::EndsAProgram(signal.number)) stop_signal = signal.number;
    }
    return stop_signal != 0;
  };
  std::atomic<bool> given_up = false;
  AgentStore job = OpenAgentStore(options, run_id, access,
                                  {.cancelled = cancelled,
                                   .say = [&](const std::string& line) { console.Say(line); },
                                   .warn = WriteLine,
                                   .give_up = [&] { return given_up || SignalSource::EndIsPending(); }});
  if (job.store == nullptr) return 128 + stop_signal;
  if (options.store_apart) run_id = NameInStore(*job.store, run_id);
  if (job.server != nullptr && !alone && !job.server->notice().empty()) console.Say(job.server->notice());

  const SnapshotSegments segments(run_id, options.workers_per_node);
  const std::string node_id = absl::StrCat(HostName(), ".", getpid(), ".", RandomId().substr(0, 8));
  const std::string log_dir = LogFolder(options, run_id, &console);
  AgentOptions agent_options = {.workers = {.command = options.command,
                                            .inherited = inherited,
                                            .job = {.run_id = run_id,
                                                    .workers_per_node = options.workers_per_node,
                                                    .max_restarts = options.max_restarts,
                                                    .agent_store = true,
                                                    .store_token = access.token,
                                                    .store_grace = options.store_grace,
                                                    .suspicion_time = options.suspicion_time,
                                                    .snapshot_memory = segments.ToVariable()},
                                            .log_dir = log_dir,
                                            .tee = options.tee,
                                            .host = HostName(),
                                            .node_id = node_id},
                                .stop_grace = options.stop_grace,
                                .guard = getppid(),
                                .give_up_store = [&] { given_up = true; },
                                .end_server = [&] { job.server = nullptr; }};
  const std::unique_ptr<Rendezvous> rendezvous = MakeRendezvous(options, run_id, node_id, job, &console);
  return Agent(agent_options, rendezvous.get(), job.store, &console, &signals).Run();
}

}  // namespace

int Launch(const LaunchOptions& options) {
  OpenClosedStreams();
  RaiseOpenFileLimit();
  // Under `bazel run` a program's name and files are meant from where the user stands.
  const std::string folder = UserPath(".");
  if (folder != "." && chdir(folder.c_str()) != 0) {
    ThrowInvalidArgument("cannot enter ", folder, ": ", strerror(errno));
  }
  return RunGuarded([&] { return RunAgent(options); });
}

}  // namespace weft
