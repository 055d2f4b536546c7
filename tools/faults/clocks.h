#ifndef WEFT_TOOLS_FAULTS_CLOCKS_H_
#define WEFT_TOOLS_FAULTS_CLOCKS_H_

#include <set>
#include <string>

namespace weft {

// Ranks with a wall clock each that can be set while they run: a program around the ranks' own, which loads libfaketime
// (Debian's package of that name) into them. The machine's clock, and the clocks that only run on (CLOCK_MONOTONIC), stay as
// they are.
class FalseClocks {
 public:
  // Writes the program into `folder`, whose clocks are right at first.
  // Errors: FailedPrecondition, if there is no such library.
  FalseClocks(const std::string& folder, const std::string& libfaketime, const std::string& program);
  // Removes what libfaketime has left in shared memory of processes that were killed meanwhile.
  ~FalseClocks();
  FalseClocks(const FalseClocks&) = delete;
  FalseClocks& operator=(const FalseClocks&) = delete;

  // To be started instead, with the same arguments.
  std::string program() const { return folder_ + "/with_clocks.sh"; }

  // Sets the clock of a rank, of this life and later ones, to as far from the right time as `share` in [-1, 1] of 30 days.
  void Jump(int rank, double share);

 private:
  const std::string folder_;
  const std::set<std::string> names_before_;  // of libfaketime, in shared memory
};

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_CLOCKS_H_
