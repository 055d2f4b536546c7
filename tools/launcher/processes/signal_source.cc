#include "tools/launcher/processes/signal_source.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "runtime/base/error.h"

namespace weft {

SignalSource::SignalSource() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD})
    sigaddset(&signals, signal);
  WEFT_CHECK(sigprocmask(SIG_BLOCK, &signals, nullptr) == 0, "sigprocmask failed");
  fd_ = FileDescriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  WEFT_CHECK(fd_.open(), "signalfd failed");
  signal(SIGPIPE, SIG_IGN);
  signal(SIGTTOU, SIG_IGN);
}

std::vector<ReceivedSignal> SignalSource::Take() {
  std::vector<ReceivedSignal> signals;
  signalfd_siginfo info = {};
  while (read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    signals.push_back(
        {.number = static_cast<int>(info.ssi_signo), .sender = static_cast<pid_t>(info.ssi_pid)});
  }
  return signals;
}

bool SignalSource::EndIsPending() {
  sigset_t pending;
  if (sigpending(&pending) != 0) return false;
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    if (sigismember(&pending, signal) == 1) return true;
  }
  return false;
}

bool SignalSource::EndsAProgram(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

}  // namespace weft
