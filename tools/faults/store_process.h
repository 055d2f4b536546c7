#ifndef WEFT_TOOLS_FAULTS_STORE_PROCESS_H_
#define WEFT_TOOLS_FAULTS_STORE_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/faults/job.h"

namespace weft {

// A job's store apart, `weft_run store`, that is killed and begins again in place: with the same folder and port.
//
// Lifetime: the destructor kills it.
class StoreProcess {
 public:
  using Clock = ChaosJob::Clock;

  // `flags`: of `weft_run store`, beside those for folder and port, --host among them. Its stderr is added to the file `log`.
  // `enter`, if there is one, is called in the new process, before it becomes weft_run.
  StoreProcess(const std::string& weft_run, const std::string& folder, const std::vector<std::string>& flags,
               const std::string& log, std::function<void()> enter = {});

  // Begins it at any free port, and waits until it may be joined.
  // Errors: FailedPrecondition, if it ends, or cannot be joined within 20 s.
  void Start();
  const std::string& address() const { return address_; }  // HOST:PORT, from Start on

  bool IsRunning() { return process_ != nullptr && process_->IsRunning(); }

  // SIGKILL of one that runs; Tend begins it again when `absence` is over.
  void Kill(std::chrono::milliseconds absence);

  // To be called now and then.
  // Errors: FailedPrecondition, if it has ended though nobody has killed it.
  void Tend();

  // Whether it could be joined when Tend looked last.
  bool IsBack() const { return is_back_; }
  Clock::time_point back_since() const { return back_since_; }  // of the last start

  // Ends it as a service manager would, by SIGTERM, and waits. False if it does not end, or with another code than 0; then
  // it is killed.
  bool End();

  // What is in its folder beside the journal, its lock and the address: after its end nothing.
  std::vector<std::string> FilesTooMany() const;
  std::vector<pid_t> Processes() const;  // with its folder on their command line

 private:
  void Begin(const std::string& port);

  const std::string weft_run_;
  const std::string folder_;
  const std::vector<std::string> flags_;
  const std::string log_;
  const std::function<void()> enter_;
  std::string address_;
  std::unique_ptr<ChaosJob> process_;
  bool is_back_ = false;
  Clock::time_point begun_;
  Clock::time_point back_since_;
  Clock::time_point due_;  // of one that is away
  int num_refusals_ = 0;   // of its port, since it could last be joined
};

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_STORE_PROCESS_H_
