#ifndef WEFT_TESTS_RUNTIME_LAUNCH_PROCESSES_H_
#define WEFT_TESTS_RUNTIME_LAUNCH_PROCESSES_H_

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace weft {

// How a process ended, and what it wrote.
struct ProcessEnd {
  int exit_code = -1;  // -1: a signal ended it
  int signal = 0;
  double seconds = 0;  // after Processes was made
  std::string out;
  std::string err;
};

// Programs run side by side by a test. None outlives the object.
class Processes {
 public:
  Processes();
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // Starts words[0], a path, with this process's environment and `variables`.
  void Start(const std::vector<std::string>& words, const std::map<std::string, std::string>& variables);

  void Signal(int index, int signal) const;

  // Waits until what one of them has written to stderr holds `text`. False: not within `timeout`.
  bool AwaitErr(const std::string& text, std::chrono::milliseconds timeout) const;

  // Waits until all but `except` (indices in the order of Start) have ended, or `timeout`: then it kills the
  // rest, and those come back as ended by SIGKILL.
  std::vector<ProcessEnd> Wait(std::chrono::milliseconds timeout, const std::vector<int>& except = {});

 private:
  struct Child {
    pid_t pid = -1;
    bool ended = false;
    ProcessEnd end;
    std::string out_path;
    std::string err_path;
  };

  bool Reap();  // true if one has ended just now

  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::string folder_;
  std::vector<Child> children_;
};

// A port of the loopback that was free just now.
int FreePort();

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_LAUNCH_PROCESSES_H_
