#include "tests/runtime/launch/processes.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

extern char** environ;

namespace weft {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Processes::Processes() {
  char name[] = "/tmp/weft_processes.XXXXXX";
  WEFT_CHECK(mkdtemp(name) != nullptr, "no temporary folder");
  folder_ = name;
}

Processes::~Processes() {
  Wait(std::chrono::milliseconds(0));
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void Processes::Start(const std::vector<std::string>& words,
                      const std::map<std::string, std::string>& variables) {
  Child child;
  child.out_path = absl::StrCat(folder_, "/", children_.size(), ".out");
  child.err_path = absl::StrCat(folder_, "/", children_.size(), ".err");
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (variables.count(text.substr(0, text.find('='))) == 0) environment.push_back(text);
  }
  for (const auto& [name, value] : variables) environment.push_back(absl::StrCat(name, "=", value));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, 1, child.out_path.c_str(), flags, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, child.err_path.c_str(), flags, 0600);
  const int error = posix_spawn(&child.pid, words[0].c_str(), &actions, nullptr, Pointers(words).data(),
                                Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  WEFT_CHECK(error == 0, "cannot start ", words[0], ": error ", error);
  children_.push_back(child);
}

void Processes::Signal(int index, int signal) const { kill(children_[index].pid, signal); }

bool Processes::Reap() {
  bool reaped = false;
  for (Child& child : children_) {
    int status = 0;
    if (child.ended || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    child.ended = reaped = true;
    child.end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    child.end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    child.end.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  return reaped;
}

bool Processes::AwaitErr(const std::string& text, std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (std::chrono::steady_clock::now() < deadline) {
    for (const Child& child : children_) {
      if (ReadAll(child.err_path).find(text) != std::string::npos) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

std::vector<ProcessEnd> Processes::Wait(std::chrono::milliseconds timeout, const std::vector<int>& except) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto awaited = [&](size_t i) {
    return !children_[i].ended &&
           std::find(except.begin(), except.end(), static_cast<int>(i)) == except.end();
  };
  for (;;) {
    Reap();
    size_t next = 0;
    while (next < children_.size() && !awaited(next)) ++next;
    if (next == children_.size() || std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (const Child& child : children_) {
    if (!child.ended) kill(child.pid, SIGKILL);
  }
  while (std::any_of(children_.begin(), children_.end(), [](const Child& child) { return !child.ended; })) {
    if (!Reap()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<ProcessEnd> ends;
  for (Child& child : children_) {
    child.end.out = ReadAll(child.out_path);
    child.end.err = ReadAll(child.err_path);
    ends.push_back(child.end);
  }
  return ends;
}

int FreePort() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool ok = socket >= 0 && bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(socket);
  WEFT_CHECK(ok, "no free port");
  return ntohs(address.sin_port);
}

}  // namespace weft
