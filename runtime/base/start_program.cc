#include "runtime/base/start_program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/error.h"

namespace weft {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// All that the child needs, made before the fork.
struct ChildPlan {
  pid_t parent = -1;
  ProgramStart start;
  int error = -1;  // where errno goes if the program cannot be started
  char* const* arguments = nullptr;
  char* const* environment = nullptr;
};

void FreeSignals(bool default_signals) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; default_signals && signal < NSIG; ++signal) sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

bool PlaceStreams(const ProgramStart& start) {
  if (start.empty_input) {
    const int empty = open("/dev/null", O_RDONLY);
    if (empty < 0 || dup2(empty, 0) < 0) return false;
    if (empty > 2) close(empty);
  }
  return (start.out < 0 || dup2(start.out, 1) >= 0) && (start.err < 0 || dup2(start.err, 2) >= 0);
}

[[noreturn]] void BecomeProgram(const ChildPlan& plan) {
  if (plan.start.leads_group) setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  // The parent may have died before the line above.
  if (getppid() != plan.parent) _exit(1);
  if (!PlaceStreams(plan.start)) _exit(1);
  FreeSignals(plan.start.default_signals);
  execvpe(plan.arguments[0], plan.arguments, plan.environment);
  const int reason = errno;
  // If this write fails too, the parent takes the program for one that started and ended with 1.
  if (write(plan.error, &reason, sizeof(reason)) < 0) _exit(1);
  _exit(1);
}

// Waits until the child has become the program; returns errno if it could not.
int ReasonOf(int error) {
  int reason = 0;
  ssize_t count = 0;
  do {
    count = read(error, &reason, sizeof(reason));
  } while (count < 0 && errno == EINTR);
  return count == static_cast<ssize_t>(sizeof(reason)) ? reason : 0;
}

[[noreturn]] void ThrowNotStarted(const std::string& program, int reason) {
  const auto code = reason == ENOENT                       ? absl::StatusCode::kNotFound
                    : reason == ENOMEM || reason == EAGAIN ? absl::StatusCode::kResourceExhausted
                                                           : absl::StatusCode::kInvalidArgument;
  if (reason == ENOENT) Throw(code, "cannot start ", program, ": there is no such program");
  if (reason == EACCES)
    Throw(code, "cannot start ", program, ": it may not be executed (chmod +x, or name its interpreter)");
  Throw(code, "cannot start ", program, ": ", strerror(reason));
}

}  // namespace

pid_t StartProgram(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                   const ProgramStart& start) {
  WEFT_REQUIRE(!command.empty(), "no program to start");
  int error[2];
  if (pipe2(error, O_CLOEXEC) != 0) {
    Throw(absl::StatusCode::kResourceExhausted, "cannot start ", command[0], ": ", strerror(errno));
  }
  const std::vector<char*> arguments = Pointers(command);
  const std::vector<char*> variables = Pointers(environment);
  const ChildPlan plan = {.parent = getpid(),
                          .start = start,
                          .error = error[1],
                          .arguments = arguments.data(),
                          .environment = variables.data()};
  const pid_t pid = fork();
  if (pid == 0) BecomeProgram(plan);
  const int fork_reason = errno;
  // In both processes, so that it holds for whichever goes on first.
  if (pid > 0 && start.leads_group) setpgid(pid, pid);
  close(error[1]);
  const int reason = pid > 0 ? ReasonOf(error[0]) : 0;
  close(error[0]);
  if (pid < 0) {
    Throw(absl::StatusCode::kResourceExhausted, "cannot start ", command[0], ": ", strerror(fork_reason));
  }
  if (reason == 0) return pid;
  waitpid(pid, nullptr, 0);
  ThrowNotStarted(command[0], reason);
}

}  // namespace weft
