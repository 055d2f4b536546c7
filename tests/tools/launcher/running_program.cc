#include "tests/tools/launcher/running_program.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

struct Ends {
  FileDescriptor read;
  FileDescriptor write;
};

Ends MakePipe() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

Ends MakeTerminal() {
  int ours = -1;
  int theirs = -1;
  EXPECT_EQ(openpty(&ours, &theirs, nullptr, nullptr, nullptr), 0);
  fcntl(ours, F_SETFD, FD_CLOEXEC);
  return {FileDescriptor(ours), FileDescriptor(theirs)};
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

void ReadOnce(FileDescriptor* pipe, std::string* text) {
  char bytes[65536];
  const ssize_t count = read(pipe->get(), bytes, sizeof(bytes));
  if (count > 0) {
    text->append(bytes, static_cast<size_t>(count));
  } else {
    pipe->Close();  // a terminal whose other side is closed gives an error
  }
}

}  // namespace

std::vector<std::string> WeftRun(const std::vector<std::string>& flags, const std::string& script) {
  std::vector<std::string> command = {"tools/weft_run"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), {"bash", "-c", script});
  return command;
}

RunningProgram::RunningProgram(const std::vector<std::string>& command, Streams streams) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  Ends out = streams == Streams::kTerminal ? MakeTerminal() : MakePipe();
  Ends err = MakePipe();
  pid_ = fork();
  if (pid_ == 0) {
    if (streams == Streams::kTerminal) login_tty(dup(out.write.get()));
    dup2(out.write.get(), 1);
    dup2(streams == Streams::kOnePipe ? out.write.get() : err.write.get(), 2);
    execv(arguments[0], arguments.data());
    _exit(126);
  }
  EXPECT_GT(pid_, 0);
  out_pipe_ = std::move(out.read);
  err_pipe_ = std::move(err.read);
}

RunningProgram::~RunningProgram() {
  if (pid_ < 0) return;
  kill(pid_, SIGTERM);
  if (Wait(std::chrono::seconds(8)) == -1) kill(pid_, SIGKILL);
}

bool RunningProgram::ReadSome(std::chrono::milliseconds wait) {
  std::vector<pollfd> fds;
  for (const FileDescriptor* pipe : {&out_pipe_, &err_pipe_}) {
    if (pipe->open()) fds.push_back({pipe->get(), POLLIN, 0});
  }
  if (fds.empty()) return false;
  poll(fds.data(), fds.size(), static_cast<int>(wait.count()));
  for (const pollfd& fd : fds) {
    if (fd.revents == 0) continue;
    if (fd.fd == out_pipe_.get()) ReadOnce(&out_pipe_, &out_);
    if (fd.fd == err_pipe_.get()) ReadOnce(&err_pipe_, &err_);
  }
  return true;
}

void RunningProgram::Type(const std::string& keys) {
  EXPECT_EQ(write(out_pipe_.get(), keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

bool RunningProgram::Await(const std::string& text, int times, std::chrono::milliseconds bound) {
  const Clock::time_point deadline = Clock::now() + bound;
  while (Count(out_, text) + Count(err_, text) < times) {
    if (Clock::now() >= deadline || !ReadSome(std::chrono::milliseconds(50))) return false;
  }
  return true;
}

int RunningProgram::Wait(std::chrono::milliseconds bound) {
  const Clock::time_point deadline = Clock::now() + bound;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (Clock::now() >= deadline) return -1;
    if (!ReadSome(std::chrono::milliseconds(20))) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  pid_ = -1;
  // What it wrote last. Only a process that it has left behind would keep a pipe open: no test may hang on
  // one.
  while (Clock::now() < deadline && ReadSome(std::chrono::milliseconds(20))) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool IsGone(pid_t pid, std::chrono::milliseconds bound) {
  const Clock::time_point deadline = Clock::now() + bound;
  for (;;) {
    const std::string stat = ContentOf(absl::StrCat("/proc/", pid, "/stat"));
    const size_t name_end = stat.rfind(") ");
    if (name_end == std::string::npos || stat[name_end + 2] == 'Z' || stat[name_end + 2] == 'X') return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

int NumberAfter(const std::string& text, const std::string& name) {
  const size_t at = text.find(absl::StrCat(name, " "));
  int number = -1;
  if (at == std::string::npos) return number;
  const std::string rest = text.substr(at + name.size() + 1);
  return absl::SimpleAtoi(rest.substr(0, rest.find_first_not_of("0123456789")), &number) ? number : -1;
}

std::string ContentOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::string NewFolder() {
  std::string name = absl::StrCat(testing::TempDir(), "/launcher.XXXXXX");
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  return name;
}

int FreePort() {
  const FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

}  // namespace weft
