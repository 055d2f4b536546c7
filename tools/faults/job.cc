#include "tools/faults/job.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "nlohmann/json.hpp"
#include "runtime/base/error.h"

namespace weft {
namespace {

void EnterOrExit(const std::function<void()>& enter) {
  try {
    enter();
  } catch (const std::exception& error) {
    dprintf(STDERR_FILENO, "error: %s\n", error.what());
    _exit(126);
  }
}

}  // namespace

ChaosJob::ChaosJob(std::vector<std::string> command, std::string log, std::function<void()> enter)
    : command_(std::move(command)), log_(std::move(log)), enter_(std::move(enter)) {}

ChaosJob::~ChaosJob() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ChaosJob::Start() {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) {
    Throw(absl::StatusCode::kResourceExhausted, "cannot make a pipe: ", strerror(errno));
  }
  out_ = FileDescriptor(ends[0]);
  const FileDescriptor theirs(ends[1]);
  fcntl(out_.get(), F_SETFL, O_NONBLOCK);
  const FileDescriptor log(open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.open()) Throw(absl::StatusCode::kNotFound, "cannot write to ", log_, ": ", strerror(errno));
  std::vector<char*> arguments;
  for (const std::string& word : command_) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  unread_.clear();
  pid_ = fork();
  if (pid_ < 0)
    Throw(absl::StatusCode::kResourceExhausted, "cannot start ", command_[0], ": ", strerror(errno));
  if (pid_ == 0) {
    dup2(theirs.get(), STDOUT_FILENO);
    dup2(log.get(), STDERR_FILENO);
    if (enter_) EnterOrExit(enter_);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
}

void ChaosJob::Pump(std::chrono::milliseconds wait) {
  if (!out_.open()) {
    poll(nullptr, 0, static_cast<int>(wait.count()));
    return;
  }
  pollfd ready = {out_.get(), POLLIN, 0};
  if (poll(&ready, 1, static_cast<int>(wait.count())) <= 0) return;
  while (ReadSome()) {
  }
}

bool ChaosJob::IsRunning() {
  if (pid_ <= 0) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  pid_ = -1;
  exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  while (ReadSome()) {
  }
  return false;
}

bool ChaosJob::ReadSome() {
  char bytes[65536];
  const ssize_t count = out_.open() ? read(out_.get(), bytes, sizeof(bytes)) : 0;
  if (count <= 0) {
    if (count == 0) out_.Close();
    return false;
  }
  unread_.append(bytes, static_cast<size_t>(count));
  for (size_t end = 0; (end = unread_.find('\n')) != std::string::npos;) {
    TakeLine(unread_.substr(0, end));
    unread_.erase(0, end + 1);
  }
  return true;
}

void ChaosJob::TakeLine(const std::string& line) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("step") || !object.contains("loss")) return;
  last_step_ = object["step"].get<int64_t>();
  ++num_lines_;
  last_line_ = Clock::now();
}

}  // namespace weft
