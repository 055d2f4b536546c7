#include "tools/launcher/worker_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "runtime/base/error.h"

namespace weft {
namespace {

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

Pipe MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    Throw(absl::StatusCode::kResourceExhausted, "cannot make a pipe for a worker: ", strerror(errno));
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// All that the child needs, made before the fork: between fork and exec other threads' locks may be held for
// ever, so only plain system calls are allowed there.
struct ChildPlan {
  pid_t parent = -1;
  int out = -1;
  int err = -1;
  int error = -1;  // where errno goes if the program cannot be started
  char* const* arguments = nullptr;
  char* const* environment = nullptr;
};

void ResetSignals() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void BecomeProgram(const ChildPlan& plan) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  // The parent may have died before the line above.
  if (getppid() != plan.parent) _exit(1);
  const int empty = open("/dev/null", O_RDONLY);
  if (empty < 0 || dup2(empty, 0) < 0 || dup2(plan.out, 1) < 0 || dup2(plan.err, 2) < 0) _exit(1);
  if (empty > 2) close(empty);
  ResetSignals();
  execvpe(plan.arguments[0], plan.arguments, plan.environment);
  const int reason = errno;
  // If this write fails too, the parent takes the worker for one that started and ended with 1.
  if (write(plan.error, &reason, sizeof(reason)) < 0) _exit(1);
  _exit(1);
}

// Waits until the child has become the program; returns errno if it could not.
int ReasonOf(FileDescriptor error) {
  int reason = 0;
  ssize_t count = 0;
  do {
    count = read(error.get(), &reason, sizeof(reason));
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

WorkerProcess StartWorkerProcess(const std::vector<std::string>& command,
                                 const std::vector<std::string>& environment) {
  WEFT_REQUIRE(!command.empty(), "no program to start");
  Pipe out = MakePipe();
  Pipe err = MakePipe();
  Pipe error = MakePipe();
  const std::vector<char*> arguments = Pointers(command);
  const std::vector<char*> variables = Pointers(environment);
  const ChildPlan plan = {.parent = getpid(),
                          .out = out.write.get(),
                          .err = err.write.get(),
                          .error = error.write.get(),
                          .arguments = arguments.data(),
                          .environment = variables.data()};
  const pid_t pid = fork();
  if (pid < 0)
    Throw(absl::StatusCode::kResourceExhausted, "cannot start ", command[0], ": ", strerror(errno));
  if (pid == 0) BecomeProgram(plan);
  // In both processes, so that it holds for whichever goes on first.
  setpgid(pid, pid);
  out.write.Close();
  err.write.Close();
  error.write.Close();
  if (const int reason = ReasonOf(std::move(error.read))) {
    waitpid(pid, nullptr, 0);
    ThrowNotStarted(command[0], reason);
  }
  fcntl(out.read.get(), F_SETFL, O_NONBLOCK);
  fcntl(err.read.get(), F_SETFL, O_NONBLOCK);
  return {pid, std::move(out.read), std::move(err.read)};
}

}  // namespace weft
