#ifndef WEFT_TESTS_TOOLS_LAUNCHER_RUNNING_PROGRAM_H_
#define WEFT_TESTS_TOOLS_LAUNCHER_RUNNING_PROGRAM_H_

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "tools/launcher/processes/file_descriptor.h"

namespace weft {

// weft_run, and the words before the program that it shall start: its flags.
std::vector<std::string> WeftRun(const std::vector<std::string>& flags, const std::string& script);

// A program that a test has started, with what it writes. The destructor kills it.
class RunningProgram {
 public:
  // Longer than anything takes on a busy machine, shorter than the minute for which scripts sleep that must
  // not end by themselves.
  static constexpr std::chrono::seconds kBound{50};

  enum class Streams {
    kPipes,     // stdout and stderr apart
    kOnePipe,   // both into one, as by 2>&1: all is in out()
    kTerminal,  // stdin and stdout are a terminal, which the program is in the foreground of; stderr is a
                // pipe
  };

  explicit RunningProgram(const std::vector<std::string>& command, Streams streams = Streams::kPipes);
  ~RunningProgram();

  pid_t pid() const { return pid_; }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

  // What a person types at the terminal.
  void Type(const std::string& keys);

  // Reads until `text` has come `times` times on either stream; false after `bound`.
  bool Await(const std::string& text, int times = 1, std::chrono::milliseconds bound = kBound);

  // Reads to the end and returns the exit code as a shell has it; -1 if it has not ended after `bound`.
  int Wait(std::chrono::milliseconds bound = kBound);

 private:
  bool ReadSome(std::chrono::milliseconds wait);

  pid_t pid_ = -1;
  FileDescriptor out_pipe_;
  FileDescriptor err_pipe_;
  std::string out_;
  std::string err_;
};

// True once no process `pid` is alive, zombies apart; false if it still is after `bound`.
bool IsGone(pid_t pid, std::chrono::milliseconds bound = RunningProgram::kBound);

// The lines of `text`, the last without an end included.
std::vector<std::string> LinesOf(const std::string& text);

// The number after `name` and a blank, at its first place in `text`; -1 if it is not there.
int NumberAfter(const std::string& text, const std::string& name);

// The content of a file; empty if there is none.
std::string ContentOf(const std::string& path);

// A folder of this test's own.
std::string NewFolder();

// A port of the loopback that nobody has now.
int FreePort();

}  // namespace weft

#endif  // WEFT_TESTS_TOOLS_LAUNCHER_RUNNING_PROGRAM_H_
