#ifndef WEFT_TOOLS_FAULTS_SHORT_WRITES_H_
#define WEFT_TOOLS_FAULTS_SHORT_WRITES_H_

#include <cstdint>
#include <string>

namespace weft {

// Ranks whose writes to a folder can be cut short while they run, each to half of its bytes: a program around the ranks' own, which
// loads cut_writes into them.
class ShortWrites {
 public:
  // Writes the program into `folder`. `target`: the folder of the files, which need not be there yet.
  // Errors: FailedPrecondition, if there is no such library.
  ShortWrites(const std::string& folder, const std::string& target, const std::string& library,
              const std::string& program);

  // To be started instead, with the same arguments.
  std::string program() const { return folder_ + "/with_short_writes.sh"; }

  void Begin();
  void End();
  // Writes that were cut since Begin; 0 after End.
  int64_t num_cut() const;

 private:
  std::string sign() const { return folder_ + "/short_writes"; }

  const std::string folder_;
};

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_SHORT_WRITES_H_
