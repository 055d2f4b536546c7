#include "tools/faults/cables.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "tools/faults/namespaces.h"

namespace weft {
namespace {

constexpr char kNeed[] = "a node is unplugged in a network of its own";
constexpr int kMostHosts = 250;

[[noreturn]] void Refused(const std::string& what) { ThrowRefused(kNeed, what); }

FileDescriptor NetworkOfThisProcess() {
  FileDescriptor network(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!network.open()) Refused("to look at its network");
  return network;
}

// In a child: ip(8) with those words, in `network`, or in the child's own for -1; what it says goes to `err`.
[[noreturn]] void ExecIp(const std::vector<std::string>& words, int network, int err) {
  std::vector<char*> arguments = {const_cast<char*>("ip")};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  dup2(err, STDERR_FILENO);
  if (network >= 0 && setns(network, CLONE_NEWNET) != 0) _exit(126);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

void Ip(const std::vector<std::string>& words, int network = -1) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) Refused("a pipe");
  const FileDescriptor from(ends[0]);
  FileDescriptor to(ends[1]);
  const pid_t child = fork();
  if (child < 0) Refused("a process");
  if (child == 0) ExecIp(words, network, to.get());
  to.Close();
  std::string said;
  char bytes[1024];
  for (ssize_t count = 0; (count = read(from.get(), bytes, sizeof(bytes))) > 0;) {
    said.append(bytes, static_cast<size_t>(count));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (status == 0) return;
  const bool is_missing = WIFEXITED(status) && WEXITSTATUS(status) == 127;
  Throw(absl::StatusCode::kFailedPrecondition, kNeed, ", and ",
        is_missing ? "there is no program 'ip': install the package iproute2"
                   : absl::StrCat("the kernel refuses 'ip ", absl::StrJoin(words, " "),
                                  "': ", absl::StripAsciiWhitespace(said)));
}

std::string CableOf(int host) { return absl::StrCat("cable", host); }

// Behind that of the switch, which is 1.
std::string AddressOf(int host) { return absl::StrCat("10.78.0.", host + 2); }

}  // namespace

Cables::Cables(int num_hosts) {
  WEFT_REQUIRE(num_hosts >= 1 && num_hosts <= kMostHosts, num_hosts, " hosts with cables: expected 1 to ",
               kMostHosts);
  RequireAllowed(kNeed, [&] {
    Make(num_hosts);
    Unplug(0);
    Plug(0);
    Enter(0);
  });
  hosts_.clear();
  Make(num_hosts);
  // What listens where other hosts reach it asks for one.
  setenv("WEFT_STORE_TOKEN", absl::StrCat("cables-", getpid()).c_str(), /*overwrite=*/0);
}

void Cables::Make(int num_hosts) {
  EnterNamespaces(CLONE_NEWNET, kNeed);
  const FileDescriptor own = NetworkOfThisProcess();
  for (int host = 0; host < num_hosts; ++host) {
    if (unshare(CLONE_NEWNET) != 0) Refused("namespaces");
    hosts_.push_back(NetworkOfThisProcess());
  }
  if (setns(own.get(), CLONE_NEWNET) != 0) Refused("to go back to the first network");
  Ip({"link", "set", "lo", "up"});
  Ip({"link", "add", "switch", "type", "bridge"});
  Ip({"address", "add", address() + "/24", "dev", "switch"});
  Ip({"link", "set", "switch", "up"});
  for (int host = 0; host < num_hosts; ++host) {
    const int network = hosts_[host].get();
    Ip({"link", "add", CableOf(host), "type", "veth", "peer", "name", "plug", "netns",
        absl::StrCat("/proc/", getpid(), "/fd/", network)});
    Ip({"link", "set", CableOf(host), "master", "switch", "up"});
    Ip({"link", "set", "lo", "up"}, network);
    Ip({"address", "add", AddressOf(host) + "/24", "dev", "plug"}, network);
    Ip({"link", "set", "plug", "up"}, network);
  }
}

void Cables::Enter(int host) const {
  if (setns(hosts_.at(host).get(), CLONE_NEWNET) != 0) Refused("a host's network");
  if (unshare(CLONE_NEWNS) != 0) Refused("namespaces of mounts");
  MakeMountsPrivate(kNeed);
  // By what they share there ranks know that they are on one machine.
  if (mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) != 0) Refused("a /dev/shm of its own");
  setenv("WEFT_GLOO_HOST", AddressOf(host).c_str(), /*overwrite=*/1);
}

void Cables::Unplug(int host) const { Ip({"link", "set", CableOf(host), "down"}); }

void Cables::Plug(int host) const { Ip({"link", "set", CableOf(host), "up"}); }

}  // namespace weft
