// The signals of a launcher, as a file to read.

#ifndef WEFT_TOOLS_LAUNCHER_PROCESSES_SIGNAL_SOURCE_H_
#define WEFT_TOOLS_LAUNCHER_PROCESSES_SIGNAL_SOURCE_H_

#include <sys/types.h>

#include <vector>

#include "tools/launcher/processes/file_descriptor.h"

namespace weft {

struct ReceivedSignal {
  int number = 0;
  // 0: the kernel, for a key of the terminal. Of SIGCHLD it is the child; of a parent's death, that parent.
  pid_t sender = 0;

  bool operator==(const ReceivedSignal&) const = default;
};

// The signals that a launcher acts on, read from a file in place of interrupting it: those that end a
// program, SIGUSR1, SIGUSR2, and SIGCHLD. SIGPIPE and SIGTTOU are ignored: output that nobody reads is
// dropped.
//
// Lifetime: made before the process has other threads, which inherit that these signals are blocked. The
//           destructor changes nothing back: a signal that is pending would end the process then.
class SignalSource {
 public:
  SignalSource();

  // Readable when Take() has something.
  int fd() const { return fd_.get(); }

  // The signals that have come, in order.
  std::vector<ReceivedSignal> Take();

  // Whether one that ends a program has come and was not taken yet. Any thread.
  static bool EndIsPending();

  // SIGINT, SIGTERM, SIGHUP, SIGQUIT.
  static bool EndsAProgram(int signal);

 private:
  FileDescriptor fd_;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_PROCESSES_SIGNAL_SOURCE_H_
