#ifndef WEFT_TOOLS_LAUNCHER_WORKERS_OUTPUT_QUEUE_H_
#define WEFT_TOOLS_LAUNCHER_WORKERS_OUTPUT_QUEUE_H_

#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace weft {

// What is still to be written to a file of the system's that may be slow (a terminal, a pipe), so that
// whoever writes never waits for its reader. Borrows the file.
class OutputQueue {
 public:
  explicit OutputQueue(int fd) : fd_(fd) {}

  // After a pipe's reader is gone, text is dropped.
  void Append(absl::string_view text);

  // Writes what the reader takes now. Does not block. What cannot be written, on a full disk say, is dropped.
  void WriteSome();

  // Why text was dropped since this was asked last; empty: none was, or a pipe's reader wanted no more.
  std::string TakeProblem() { return std::exchange(problem_, ""); }

  int fd() const { return fd_; }
  size_t num_bytes() const { return pending_.size(); }
  bool empty() const { return pending_.empty(); }

  // True where more should not be read from workers before this has been written.
  bool full() const { return pending_.size() > (256 << 10); }

 private:
  int fd_;
  bool reader_gone_ = false;
  std::string problem_;
  std::string pending_;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_WORKERS_OUTPUT_QUEUE_H_
