#include "tools/faults/namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "tools/launcher/processes/file_descriptor.h"

namespace weft {
namespace {

// Files of /proc take one write.
bool WriteTo(const char* path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

// What `attempt` throws, by its message; "": nothing.
std::string RefusalOf(const std::string& need, const std::function<void()>& attempt) {
  const ChildEnd end = RunInChild(need, [&](int out) {
    std::string refusal;
    try {
      attempt();
    } catch (const std::exception& error) {
      refusal = error.what();
    }
    const ssize_t told = write(out, refusal.data(), refusal.size());
    _exit(told == std::ssize(refusal) ? 0 : 1);
  });
  return end.status == 0 || !end.said.empty() ? end.said : "the kernel has ended the process that tries it";
}

}  // namespace

void ThrowRefused(const std::string& need, const std::string& what) {
  Throw(absl::StatusCode::kFailedPrecondition, need, ", and the kernel refuses ", what, ": ",
        strerror(errno));
}

void EnterNamespaces(int kinds, const std::string& need) {
  if (unshare(kinds) == 0) return;
  const std::string user = absl::StrCat("0 ", getuid(), " 1"), group = absl::StrCat("0 ", getgid(), " 1");
  if (unshare(CLONE_NEWUSER | kinds) != 0) ThrowRefused(need, "namespaces");
  if (!WriteTo("/proc/self/setgroups", "deny") || !WriteTo("/proc/self/uid_map", user) ||
      !WriteTo("/proc/self/gid_map", group)) {
    ThrowRefused(need, "to name this user in a user namespace");
  }
}

void MakeMountsPrivate(const std::string& need) {
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    ThrowRefused(need, "a private tree of mounts");
  }
}

ChildEnd RunInChild(const std::string& need, const std::function<void(int out)>& body) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) ThrowRefused(need, "a pipe");
  const FileDescriptor from(ends[0]);
  FileDescriptor to(ends[1]);
  const pid_t child = fork();
  if (child < 0) ThrowRefused(need, "a process");
  if (child == 0) {
    body(to.get());
    _exit(0);
  }
  to.Close();
  ChildEnd end;
  char bytes[1024];
  for (ssize_t count = 0; (count = read(from.get(), bytes, sizeof(bytes))) > 0;) {
    end.said.append(bytes, static_cast<size_t>(count));
  }
  while (waitpid(child, &end.status, 0) < 0 && errno == EINTR) continue;
  return end;
}

void RequireAllowed(const std::string& need, const std::function<void()>& attempt) {
  const std::string refusal = RefusalOf(need, attempt);
  if (!refusal.empty()) Throw(absl::StatusCode::kFailedPrecondition, refusal);
}

}  // namespace weft
