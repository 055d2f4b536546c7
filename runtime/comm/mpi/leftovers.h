#ifndef WEFT_RUNTIME_COMM_MPI_LEFTOVERS_H_
#define WEFT_RUNTIME_COMM_MPI_LEFTOVERS_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace weft {

// Something of a failed operation that MPI still runs, with all the memory that MPI may touch.
class MpiLeftover {
 public:
  virtual ~MpiLeftover() = default;
  // True once MPI has done with it. Not asked again then.
  virtual bool Done() = 0;
  // "a collective", for messages.
  virtual std::string What() const = 0;
};

// Memory that MPI may touch till the end.
template <class T>
class MpiKept final : public MpiLeftover {
 public:
  explicit MpiKept(T memory) : memory_(std::move(memory)) {}
  bool Done() override { return false; }
  std::string What() const override { return "a broadcast among all processes"; }

 private:
  T memory_;
};

// What failed groups leave to the end of the process: why the first of them failed, and the operations that
// could not be ended, since MPI cancels neither collectives nor sends. Shared by an environment and all that
// it has made.
//
// Threads: any.
class MpiLeftovers {
 public:
  void Keep(std::unique_ptr<MpiLeftover> leftover);

  // The first stays.
  void RecordFailure(const std::string& message);

  // The first failure; "" if no group has failed.
  std::string failure() const;

  // What is not done by now, in words.
  std::vector<std::string> Pending();

 private:
  mutable std::mutex mutex_;
  std::string failure_;
  std::vector<std::unique_ptr<MpiLeftover>> kept_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_LEFTOVERS_H_
