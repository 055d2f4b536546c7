#ifndef WEFT_TOOLS_FAULTS_JOB_H_
#define WEFT_TOOLS_FAULTS_JOB_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/launcher/processes/file_descriptor.h"

namespace weft {

// One node of a job: a weft_run, whose rank 0, if that is here, writes a JSON object a step on stdout ("step" and "loss" in
// it). Started again after its end, it is the same job: what a scheduler does.
//
// Lifetime: the destructor kills weft_run, and with it the ranks.
class ChaosJob {
 public:
  using Clock = std::chrono::steady_clock;

  // `command`: weft_run with its flags, the program and its flags. Its stderr is added to the file `log`. `enter`, if there is one,
  // is called in the new process, before it becomes weft_run.
  ChaosJob(std::vector<std::string> command, std::string log, std::function<void()> enter = {});
  ~ChaosJob();
  ChaosJob(const ChaosJob&) = delete;
  ChaosJob& operator=(const ChaosJob&) = delete;

  // Errors: ResourceExhausted or NotFound, naming the program, if it cannot be started.
  void Start();

  // Reads what has come, waiting for something no longer than `wait`.
  void Pump(std::chrono::milliseconds wait);
  int fd() const { return out_.get(); }  // from which it reads; -1: nothing comes any more

  // Whether weft_run runs. After its end, all that it wrote has been read.
  bool IsRunning();
  int exit_code() const { return exit_code_; }  // as a shell has it; of the last that ended
  pid_t pid() const { return pid_; }            // weft_run's; -1 if none runs

  int64_t last_step() const { return last_step_; }  // 0 before the first
  int64_t num_lines() const { return num_lines_; }  // steps that were written, repeated ones counted again
  Clock::time_point last_line() const { return last_line_; }  // when the last came

 private:
  bool ReadSome();
  void TakeLine(const std::string& line);

  const std::vector<std::string> command_;
  const std::string log_;
  const std::function<void()> enter_;
  pid_t pid_ = -1;
  FileDescriptor out_;
  std::string unread_;  // a line without its end
  int exit_code_ = -1;
  int64_t last_step_ = 0;
  int64_t num_lines_ = 0;
  Clock::time_point last_line_;
};

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_JOB_H_
