#ifndef WEFT_RUNTIME_COMM_DEVICE_GROUPS_H_
#define WEFT_RUNTIME_COMM_DEVICE_GROUPS_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/allocator.h"
#include "runtime/store/store.h"

namespace weft {

// The communicators of one rank among devices of a kind, by those devices' own library: NCCL's of GPUs.
class DeviceGroups {
 public:
  virtual ~DeviceGroups() = default;

  // A communicator among `ranks`, ascending world ranks; waits for the other members.
  virtual std::shared_ptr<Communicator> Make(const std::string& name, const std::vector<int>& ranks,
                                             Ledger* ledger) = 0;

  // Waits until nothing is under way in any group.
  virtual void FinishWork() = 0;

  // Throws what has ended the first group that had operations other than barriers under way then; as long as there is none,
  // does nothing. The device's streams go on behind such operations. Any thread.
  virtual void ThrowIfCutOff() const = 0;

  // Ends all groups, those still to come too, with Aborted. Any thread.
  virtual void AbortAll(const std::string& reason) = 0;

  // The rank is done: tells its peers, which would wait for it in vain.
  virtual void Finish() = 0;
};

// What a kind of device adds to a program that links its communicators.
struct DeviceGroupsBackend {
  // For one rank, on its thread. Ranks meet in `store`; `allocator` is the rank's, of such a device.
  std::unique_ptr<DeviceGroups> (*make)(std::shared_ptr<Store> store, int world_rank,
                                        std::shared_ptr<Allocator> allocator);

  // A name of the allocator's device that no other device of this or another machine has.
  std::string (*device_name)(const Allocator& allocator);
};

// Registers the communicators of a kind of device, from their own file, during static initialisation.
// Registering one twice ends the program with a message: it is a defect of the build.
class RegisterDeviceGroups {
 public:
  RegisterDeviceGroups(DeviceType type, const DeviceGroupsBackend& backend);
};

// True if this program has been built with communicators for that kind of device.
bool HasDeviceGroups(DeviceType type);

// Errors: FailedPrecondition if it has not.
const DeviceGroupsBackend& DeviceGroupsOf(DeviceType type);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_DEVICE_GROUPS_H_
