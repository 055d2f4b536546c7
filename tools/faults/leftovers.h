#ifndef WEFT_TOOLS_FAULTS_LEFTOVERS_H_
#define WEFT_TOOLS_FAULTS_LEFTOVERS_H_

#include <string>
#include <vector>

namespace weft {

// Where a job that is over may have left something.
struct JobPlaces {
  std::vector<std::string> run_ids;
  std::vector<std::string> shared_memory_before;  // names that were there before the job
  std::string folder;                             // of what it saves and logs
  std::string checkpoints;                        // folder of steps
};

// What it has left: processes, a second after its end, names in shared memory, temporary files, folders of a step without a
// manifest. One text for each.
std::vector<std::string> LeftBy(const JobPlaces& places);

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_LEFTOVERS_H_
