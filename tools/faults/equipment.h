// What faults need beside signals, as far as the machine has it.

#ifndef WEFT_TOOLS_FAULTS_EQUIPMENT_H_
#define WEFT_TOOLS_FAULTS_EQUIPMENT_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/faults/cables.h"
#include "tools/faults/clocks.h"
#include "tools/faults/fault_plan.h"
#include "tools/faults/short_writes.h"
#include "tools/faults/storage.h"

namespace weft {

struct EquipmentOptions {
  std::string folder;       // for what it writes
  std::string checkpoints;  // folder of the job that is hurt
  std::string program;      // the ranks'
  std::string libfaketime;  // libraries
  std::string cut_writes;
  int num_nodes = 1;
};

// Each is there if the plan has faults of its kind.
// Threads: the process has a single one when it is made.
struct Equipment {
  // Faults that the machine refuses are taken out of the plan; `say` gets a line that says why.
  // Errors: FailedPrecondition, if it refuses all.
  Equipment(const EquipmentOptions& options, const std::function<void(const std::string&)>& say,
            std::vector<PlannedFault>* plan);

  std::optional<SmallDisk> disk;            // the checkpoints', if it is to be full
  std::optional<Cables> cables;             // the nodes', if they are to be pulled
  std::optional<FalseClocks> clocks;        // the ranks', if they are to jump
  std::optional<ShortWrites> short_writes;  // the ranks'
  std::string program;                      // the ranks', with what it loads
  int num_skipped = 0;
};

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_EQUIPMENT_H_
