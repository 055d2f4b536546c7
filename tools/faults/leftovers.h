#ifndef WEFT_TOOLS_FAULTS_LEFTOVERS_H_
#define WEFT_TOOLS_FAULTS_LEFTOVERS_H_

#include <string>
#include <vector>

#include "tools/faults/store_process.h"

namespace weft {

// Where a job that is over may have left something.
struct JobPlaces {
  std::vector<std::string> run_ids;
  std::vector<std::string> shared_memory_before;  // names that were there before the job
  std::string folder;                             // of what it saves and logs
  std::string temporary;                          // TMPDIR of its processes
  std::string checkpoints;                        // folder of steps
};

// What it has left: processes, a second after its end, new names in shared memory, of this user, that no process uses,
// temporary files, folders of a step without a manifest, files of a step that are not as long as its manifest says. One text
// for each.
std::vector<std::string> LeftBy(const JobPlaces& places);

// Ends the job's store as a service manager would; what there is against its end, and what it has left, likewise.
std::vector<std::string> LeftByStore(StoreProcess& store);

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_LEFTOVERS_H_
