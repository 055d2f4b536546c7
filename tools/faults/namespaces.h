// Pieces of the machine that a process has for itself, and the kernel's word where it refuses them.

#ifndef WEFT_TOOLS_FAULTS_NAMESPACES_H_
#define WEFT_TOOLS_FAULTS_NAMESPACES_H_

#include <functional>
#include <string>

namespace weft {

// `need`: what the namespaces are for, as "faults of the disk need a file system of their own"; errors begin with it.

// New namespaces for this process: CLONE_NEWNS, CLONE_NEWNET or both, in a user namespace where this user may make none.
//
// Threads: the process has a single one; the kernel asks for that.
// Errors:  FailedPrecondition with the kernel's word.
void EnterNamespaces(int kinds, const std::string& need);

// Mounts that this process makes from here on are nobody else's. It is in a mount namespace of its own.
// Errors: FailedPrecondition with the kernel's word.
void MakeMountsPrivate(const std::string& need);

// Throws FailedPrecondition: `need`, and that the kernel refuses `what`, with errno's word.
[[noreturn]] void ThrowRefused(const std::string& need, const std::string& what);

// How a child of this process has ended.
struct ChildEnd {
  std::string said;
  int status = 0;  // as waitpid gives it
};

// Runs `body` in a child, with a descriptor that takes what the child has to say, and waits for its end. `body` ends the child,
// or becomes another program; a child that returns from it ends well.
// Errors: FailedPrecondition with the kernel's word.
ChildEnd RunInChild(const std::string& need, const std::function<void(int out)>& body);

// Half of what the kernel refuses it refuses behind a first step, which would stay: `attempt` is made by a child, which ends.
// Errors: FailedPrecondition with the message of what `attempt` throws.
void RequireAllowed(const std::string& need, const std::function<void()>& attempt);

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_NAMESPACES_H_
