#include "tools/faults/equipment.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"

namespace weft {

Equipment::Equipment(const EquipmentOptions& options, const std::function<void(const std::string&)>& say,
                     std::vector<PlannedFault>* plan)
    : program(options.program) {
  const auto prepare = [&](Fault fault, const std::function<void()>& make) {
    const auto is_it = [fault](const PlannedFault& planned) { return planned.fault == fault; };
    if (absl::c_none_of(*plan, is_it)) return;
    try {
      make();
    } catch (const Error& error) {
      const auto count = static_cast<int>(std::erase_if(*plan, is_it));
      if (error.code() != absl::StatusCode::kFailedPrecondition || plan->empty()) throw;
      num_skipped += count;
      say(absl::StrFormat("skipped: %s, %d times: %s", std::string(FaultName(fault)), count,
                          error.message()));
    }
  };
  prepare(Fault::kDisk, [&] { disk.emplace(options.checkpoints); });
  prepare(Fault::kUnplug, [&] { cables.emplace(options.num_nodes); });
  prepare(Fault::kClock, [&] {
    clocks.emplace(options.folder, options.libfaketime, program);
    program = clocks->program();
  });
  prepare(Fault::kShort, [&] {
    short_writes.emplace(options.folder, options.checkpoints, options.cut_writes, program);
    program = short_writes->program();
  });
  // There is no restart before the first fault.
  if (IsInRestart(plan->front().moment)) plan->front().moment = Moment::kStep;
}

}  // namespace weft
