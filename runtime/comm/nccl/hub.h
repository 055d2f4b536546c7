// A process's use of NCCL: its communicators, and whoever watches over them.

#ifndef WEFT_RUNTIME_COMM_NCCL_HUB_H_
#define WEFT_RUNTIME_COMM_NCCL_HUB_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/group_failure.h"
#include "runtime/comm/nccl/nccl_api.h"
#include "runtime/device/allocator.h"
#include "runtime/store/store.h"

namespace weft {

struct NcclOptions {
  // How long a new group waits for its members.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  // How often the monitor looks after operations that are late, errors of NCCL, and who else is late.
  std::chrono::milliseconds interval = std::chrono::milliseconds(200);
  // An operation that takes longer is late, and its members compare what they have called; half the group's
  // timeout, if that is less.
  std::chrono::milliseconds late_after = std::chrono::milliseconds(1500);
  // How long a late member waits for the others to say where they are.
  std::chrono::milliseconds patience = std::chrono::seconds(3);
  // Whether a group registers the memory that its operations use with NCCL (ncclCommRegister), each block of the rank's pool
  // once. The same on all members: NCCL wants it so of the memory of a call.
  bool register_memory = false;
};

// What the nccl groups of one rank share: the store where members meet, and one thread, the monitor, that
// watches over all of them, so that a host which waits for nothing still learns what has gone wrong.
//
// Cost:     each interval the monitor looks at its groups' oldest operations and asks the store for one key.
// Lifetime: shared by its owner, the rank's world, and every communicator. Ends with Finish.
// Threads:  any.
class NcclHub {
 public:
  // A round of the monitor.
  struct Round {
    int64_t now_ns = 0;           // FlightClock
    std::optional<int64_t> call;  // somebody is late, and asks where all are; the number of the question
  };

  // A group, as the hub knows it. The monitor's calls do not throw.
  class Member {
   public:
    virtual ~Member() = default;
    virtual void Look(const Round& round) noexcept = 0;
    // Leaves in order, a step a call: true once it has left.
    virtual bool TryLeave() noexcept = 0;
    // Tells its members what has ended it, if they have not been told.
    virtual void Tell() noexcept = 0;
    // Leaves the last of its calls in the store, for members that are still in one when this rank is gone.
    // Errors: those of the store.
    virtual void TellLast() = 0;
    virtual bool idle() = 0;  // nothing is under way
    virtual void AbortAll(const std::string& reason) = 0;
    virtual void EndNow() noexcept = 0;
    // Of a group that has failed, or that EndNow has ended: returns when NCCL has let go of it. NCCL may wait for other groups to
    // end first.
    virtual void AwaitEnded() noexcept = 0;
  };

  // `store` is this incarnation of the job's own. `allocator`: the rank's, on its GPU.
  NcclHub(std::shared_ptr<NcclApi> api, std::shared_ptr<Store> store, int world_rank,
          std::shared_ptr<Allocator> allocator, NcclOptions options = {});
  ~NcclHub();
  NcclHub(const NcclHub&) = delete;
  NcclHub& operator=(const NcclHub&) = delete;

  const std::shared_ptr<NcclApi>& api() const { return api_; }
  Store& store() { return *store_; }
  int world_rank() const { return world_rank_; }
  const std::shared_ptr<Allocator>& allocator() const { return allocator_; }
  const NcclOptions& options() const { return options_; }

  // Ends every group, those still to come and those that still wait for members too, with Aborted.
  void AbortAll(const std::string& reason);

  // Waits until nothing is under way in any group; their timeouts end it.
  void FinishWork();

  // As DeviceGroups.
  void ThrowIfCutOff() const { cut_off_.ThrowIfFailed(); }

  // This rank's function has returned and its work is done: leaves its groups and ends the monitor. Takes up to a second, and
  // a few calls to the store for each group.
  void Finish() noexcept;

  // For the groups.

  // "nccl/0-3,8/2/": where the members of this rank's next group of `ranks` meet.
  std::string NextPrefix(const std::vector<int>& ranks);
  void ThrowIfAborted();                           // Errors: Aborted after AbortAll
  void Add(const std::shared_ptr<Member>& group);  // Errors: as ThrowIfAborted
  void Retire(std::shared_ptr<Member> group);      // its user has dropped it
  // A group ends with `error` and operations other than barriers under way; before NCCL lets go of them.
  void NoteCutOff(const Error& error) { cut_off_.Set(error.code(), error.message()); }
  int64_t Call();                    // asks all ranks where they are; returns the question's number
  void Wake();                       // a round now
  bool HasFinished(int world_rank);  // its function has returned
  // Says on stderr why NCCL does not register memory; the first time only.
  void WarnOfRegistration(const std::string& group, const Error& error);

 private:
  void Loop();
  std::vector<std::shared_ptr<Member>> Members();
  // True if a group is still leaving.
  bool LeaveRetired();

  const std::shared_ptr<NcclApi> api_;
  const std::shared_ptr<Store> store_;
  const int world_rank_;
  const std::shared_ptr<Allocator> allocator_;
  const NcclOptions options_;
  std::atomic<bool> has_warned_ = false;
  GroupFailure cut_off_;    // of the first group that has ended with operations under way
  std::mutex leave_mutex_;  // one at a time leaves; taken before mutex_
  std::mutex mutex_;        // of all below
  std::condition_variable wake_;
  bool stop_ = false;
  bool awake_ = false;
  std::map<std::vector<int>, int64_t> num_groups_;  // by rank set
  std::vector<std::weak_ptr<Member>> groups_;
  std::vector<std::shared_ptr<Member>> retired_;
  std::optional<std::string> abort_reason_;
  int64_t answered_ = 0;  // the monitor's
  std::thread monitor_;   // started by the first group
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_HUB_H_
