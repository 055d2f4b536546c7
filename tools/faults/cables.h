// The machines of a job, with a cable each that can be pulled.

#ifndef WEFT_TOOLS_FAULTS_CABLES_H_
#define WEFT_TOOLS_FAULTS_CABLES_H_

#include <string>
#include <vector>

#include "tools/launcher/processes/file_descriptor.h"

namespace weft {

// Networks of this machine's own: one per host, and one for this process and whatever else it starts, which has the switch that
// all cables lead to. Of the machine's network this process sees nothing any more. By iproute2. All of it goes with the last process that is in it.
// What this process starts has a token for its store (WEFT_STORE_TOKEN).
//
// Threads: the process has a single one when it is made; the kernel asks for that.
class Cables {
 public:
  // Errors: FailedPrecondition, if the kernel refuses namespaces, mounts or links, or there is no iproute2: then this process is
  //         as it was. InvalidArgument for less than one host, or more than 250.
  explicit Cables(int num_hosts);

  // Where this process listens that the hosts may come to it.
  std::string address() const { return "10.78.0.1"; }

  // Makes the calling process one of that host: its network, a /dev/shm of its own, its address in WEFT_GLOO_HOST. For a child
  // that begins another program then.
  // Errors: FailedPrecondition with the kernel's word.
  void Enter(int host) const;

  // Errors: FailedPrecondition with the kernel's word.
  void Unplug(int host) const;
  void Plug(int host) const;

 private:
  void Make(int num_hosts);

  std::vector<FileDescriptor> hosts_;  // their network namespaces
};

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_CABLES_H_
