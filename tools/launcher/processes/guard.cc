#include "tools/launcher/processes/guard.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "tools/launcher/processes/descendants.h"
#include "tools/launcher/processes/signal_source.h"

namespace weft {
namespace {

constexpr std::chrono::milliseconds kKillBound{3000};

// The status of the agent, if it has ended; reaps orphans on the way.
std::optional<int> StatusOf(pid_t agent) {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid == agent) return status;
  }
  return std::nullopt;
}

int ExitCodeOf(int status) {
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  std::cerr << absl::StrCat("weft_run: its agent was killed by signal ", signal,
                            ": all workers have been stopped\n");
  return 128 + signal;
}

int Guard(pid_t agent, SignalSource* signals) {
  for (;;) {
    pollfd ready = {signals->fd(), POLLIN, 0};
    poll(&ready, 1, /*timeout=*/1000);
    for (const ReceivedSignal& signal : signals->Take()) {
      if (signal.number != SIGCHLD) kill(agent, signal.number);
    }
    if (const std::optional<int> status = StatusOf(agent)) {
      KillDescendants(kKillBound);
      return ExitCodeOf(*status);
    }
  }
}

}  // namespace

int RunGuarded(const std::function<int()>& body) {
  AdoptOrphans();
  SignalSource signals;
  const pid_t guard = getpid();
  const pid_t agent = fork();
  if (agent < 0) Throw(absl::StatusCode::kResourceExhausted, "cannot start the agent: ", strerror(errno));
  if (agent > 0) return Guard(agent, &signals);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
  // The guard may have been killed before the line above.
  if (getppid() != guard) return 128 + SIGKILL;
  return body();
}

}  // namespace weft
