#ifndef WEFT_TOOLS_LAUNCHER_WORKERS_CONSOLE_H_
#define WEFT_TOOLS_LAUNCHER_WORKERS_CONSOLE_H_

#include <poll.h>

#include <vector>

#include "absl/strings/string_view.h"
#include "tools/launcher/workers/output_queue.h"

namespace weft {

// This program's own stdout and stderr, as its workers' output sees them. Where both are the same file, text
// for either goes through one queue, so that lines stay whole.
class Console {
 public:
  Console();

  OutputQueue& out() { return out_; }
  OutputQueue& err() { return err_is_out_ ? out_ : err_; }

  // Whether a person may be reading stdout: lines of all ranks go there, each with its rank. Else a program
  // reads it, and it is rank 0's alone, byte for byte.
  bool out_is_terminal() const { return out_is_terminal_; }

  // A line (or several) of the launcher's own, on stderr.
  void Say(absl::string_view text);

  // For poll: which of the two wait for their reader.
  void AddPollFds(std::vector<pollfd>* fds) const;

  // Writes what the readers take now. Says once, on stderr, that stdout cannot be written.
  void WriteSome();

  bool empty() const { return out_.empty() && err_.empty(); }
  size_t num_bytes() const { return out_.num_bytes() + err_.num_bytes(); }
  bool full() const { return out_.full() || err_.full(); }

 private:
  OutputQueue out_{1};
  OutputQueue err_{2};
  bool out_is_terminal_ = false;
  bool err_is_out_ = false;
  bool said_lost_ = false;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_WORKERS_CONSOLE_H_
