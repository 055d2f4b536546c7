#ifndef WEFT_RUNTIME_LAUNCH_PROCESS_GROUPS_H_
#define WEFT_RUNTIME_LAUNCH_PROCESS_GROUPS_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/device_groups.h"
#include "runtime/comm/mpi/environment.h"
#include "runtime/comm/worker_pool.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/store/store.h"

namespace weft {

// The communicators of a rank that is a process: one backend of them.
class ProcessGroups {
 public:
  virtual ~ProcessGroups() = default;

  // As World::NewGroup.
  virtual std::shared_ptr<Communicator> Make(const std::string& name, const std::vector<int>& ranks,
                                             Ledger* ledger, WorkerPool* workers) = 0;

  // Waits for what is under way on a device; the workers' operations are not the groups'.
  virtual void FinishWork() {}

  // As World::ThrowIfCutOff.
  virtual void ThrowIfCutOff() const {}

  // Ends all groups, those still to come too, with Aborted. Any thread.
  virtual void AbortAll(const std::string& reason) = 0;

  // The rank is done: tells its peers, which would wait for it in vain.
  virtual void Finish() = 0;
};

// Processes over shared memory and TCP, which meet in `store`.
std::unique_ptr<ProcessGroups> MakeGlooGroups(const LaunchEnvironment& environment,
                                              std::shared_ptr<Store> store);

// Processes with a device each, whose own library connects those.
std::unique_ptr<ProcessGroups> MakeDeviceProcessGroups(std::unique_ptr<DeviceGroups> groups);

// Processes that an MPI connects. `mpi` outlives the groups. Called by all processes; waits for them.
std::unique_ptr<ProcessGroups> MakeMpiGroups(MpiEnvironment& mpi);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_PROCESS_GROUPS_H_
