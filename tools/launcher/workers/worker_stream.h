#ifndef WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_STREAM_H_
#define WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_STREAM_H_

#include <deque>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "tools/launcher/processes/file_descriptor.h"
#include "tools/launcher/workers/output_queue.h"

namespace weft {

// Where what one worker writes to one of its streams goes: to this program's own stream, to a log, both or
// neither. The last lines are kept in any case.
struct StreamRoute {
  OutputQueue* console = nullptr;  // null: not shown. Borrowed.
  FileDescriptor log;              // none: not logged
  std::string console_prefix;      // before every line shown; empty: bytes pass unchanged
  std::string log_prefix;          // the same for the log
};

// One stream of one worker, line by line: whatever the other workers write, lines stay whole. The last line
// may lack its end, and gets one only where lines have prefixes.
class WorkerStream {
 public:
  // A line longer than this is passed on in pieces.
  static constexpr size_t kMaxLineBytes = 64 << 10;
  // What Tail() holds at most.
  static constexpr size_t kTailLines = 200;
  static constexpr size_t kTailBytes = 64 << 10;

  // `pipe` does not block.
  WorkerStream(FileDescriptor pipe, StreamRoute route);

  // Reads and passes on what is there, up to `kMaxLineBytes`; closes the pipe at its end.
  // Returns true if there may be more at once.
  bool ReadSome();

  // Reads all that is there now: the worker has ended, though something that it started may have the stream
  // still.
  void ReadAll();

  // Passes on a last line without an end, and closes the pipe.
  void Finish();

  // The last whole lines, oldest first, and a last one that has no end yet.
  std::string Tail() const;

  // Why the log was given up, once: a full disk does not end the job. Empty if it was not.
  std::string TakeLogProblem() { return std::exchange(log_problem_, ""); }

  int fd() const { return pipe_.get(); }
  bool open() const { return pipe_.open(); }

 private:
  void Feed(absl::string_view bytes);
  void Pass(absl::string_view line);
  void Keep(absl::string_view line);
  void Log(const std::string& text);

  FileDescriptor pipe_;
  StreamRoute route_;
  std::string log_problem_;
  std::string partial_;
  std::deque<std::string> tail_;
  size_t tail_bytes_ = 0;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_STREAM_H_
