#include "tools/faults/cables.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
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
  const ChildEnd end = RunInChild(kNeed, [&](int out) { ExecIp(words, network, out); });
  if (end.status == 0) return;
  const bool is_missing = WIFEXITED(end.status) && WEXITSTATUS(end.status) == 127;
  Throw(absl::StatusCode::kFailedPrecondition, kNeed, ", and ",
        is_missing ? "there is no program 'ip': install the package iproute2"
                   : absl::StrCat("the kernel refuses 'ip ", absl::StrJoin(words, " "),
                                  "': ", absl::StripAsciiWhitespace(end.said)));
}

std::string CableOf(int host) { return absl::StrCat("cable", host); }

void MountMemory(const std::string& folder) {
  if (mount("tmpfs", folder.c_str(), "tmpfs", 0, nullptr) != 0) Refused("a /dev/shm of its own");
}

std::string MemoryOf(int host) { return absl::StrCat("/dev/shm/host", host); }

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
  EnterNamespaces(CLONE_NEWNET | CLONE_NEWNS, kNeed);
  MakeMountsPrivate(kNeed);
  MountMemory("/dev/shm");
  for (int host = 0; host < num_hosts; ++host) {
    if (mkdir(MemoryOf(host).c_str(), 0700) != 0) Refused("a folder for a host's memory");
    // By what file system they share there ranks know that they are on one machine.
    MountMemory(MemoryOf(host));
  }
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
  if (mount(MemoryOf(host).c_str(), "/dev/shm", nullptr, MS_BIND, nullptr) != 0) Refused("a host's /dev/shm");
  setenv("WEFT_GLOO_HOST", AddressOf(host).c_str(), /*overwrite=*/1);
}

void Cables::Unplug(int host) const { Ip({"link", "set", CableOf(host), "down"}); }

void Cables::Plug(int host) const { Ip({"link", "set", CableOf(host), "up"}); }

}  // namespace weft
