#ifndef WEFT_RUNTIME_LAUNCH_PROCESS_WORLD_H_
#define WEFT_RUNTIME_LAUNCH_PROCESS_WORLD_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/mpi/environment.h"
#include "runtime/launch/hangs/watchdog.h"
#include "runtime/launch/job_store.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/peer_watch.h"
#include "runtime/launch/process_groups.h"
#include "runtime/launch/world.h"
#include "runtime/launch/world_store.h"

namespace weft {

// The world of a rank that is a process of its own. Its groups end with Aborted, naming who and how, within a
// second of the death or failure of any process of the job; its watchdog explains hangs with the others'.
//
// Lifetime: its end says farewell: as done, or if an exception is under way, as failed. In rank 0's process,
//           which may keep the job's store, it waits for the others then. The others wait for the end of rank 0's where the next
//           world's store may take that one's place: in a world by arguments (JoinWorld), at most 30 s once a rank has failed, and
//           under an address of the environment, or one that MPI tells, not at all once one has.
class ProcessWorld final : public World {
 public:
  // `mpi` is null but for the mpi backend. `store` has this process's last will.
  // Errors: those of the backend, in meeting the others. The other ranks are not told: see MakeProcessWorldIn.
  ProcessWorld(const LaunchEnvironment& environment, const WorldOptions& options,
               std::shared_ptr<MpiEnvironment> mpi, std::shared_ptr<JobStore> store);
  ~ProcessWorld() override;

  void FinishWork() override;
  void ThrowIfCutOff() const override { groups_->ThrowIfCutOff(); }
  Store& store() override { return users_store_; }
  // Where the launcher keeps the store, which of the process's worlds this is, from 1: all of them share store(). Otherwise 1.
  int64_t number() const { return number_; }
  // What ranks leave to the ranks of the next life; nothing, unless the launcher keeps the store (weft_run).
  Store* run_store() { return store_->launcher_keeps_it() ? &store_->run_store() : nullptr; }

  // The rank's function has thrown: the others are told so, as "failed: <message>".
  void TellFailure(const std::string& message) noexcept;

 protected:
  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override;
  std::shared_ptr<Communicator> MakeGroupOn(Backend backend, const std::string& name,
                                            const std::vector<int>& ranks) override;

 private:
  std::unique_ptr<ProcessGroups> MakeGroups(const WorldOptions& options);
  ProcessGroups* GroupsOn(Backend backend);  // null: this world has none
  void PeerIsGone(int gone, const std::string& how);
  void WriteFlightRecord() noexcept;

  const LaunchEnvironment environment_;
  const std::chrono::milliseconds comm_timeout_;
  Backend backend_ = Backend::kGloo;  // of groups_
  const std::shared_ptr<MpiEnvironment> mpi_;
  const std::shared_ptr<JobStore> store_;
  WorldStore users_store_;  // a part of it
  const int64_t number_;
  const std::shared_ptr<Store> meeting_store_;  // a part of store_, too
  const std::unique_ptr<ProcessGroups> groups_;
  // One record at a time: the rank's thread writes it, and the peer watch.
  std::mutex flight_mutex_;
  std::mutex beside_mutex_;
  std::unique_ptr<ProcessGroups> gloo_beside_;  // other groups; null until some are asked for
  std::string abort_reason_;                    // of them, once all have been aborted
  Watchdog watchdog_;
  std::unique_ptr<PeerWatch> peer_watch_;
  bool ended_ = false;
};

// The world of a rank whose `store` is open and has its last will. If the world cannot be made the others are told so, as
// "failed: <why>".
std::unique_ptr<ProcessWorld> MakeProcessWorldIn(const std::shared_ptr<JobStore>& store,
                                                 const LaunchEnvironment& environment,
                                                 const WorldOptions& options,
                                                 const std::shared_ptr<MpiEnvironment>& mpi = nullptr);

// The world of this process, as World::FromEnv says, with its environment already read (nullopt: there is
// none). Raises the limit of the process's open files (RaiseOpenFileLimit).
std::unique_ptr<ProcessWorld> MakeProcessWorld(const std::optional<LaunchEnvironment>& environment,
                                               const WorldOptions& options);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_PROCESS_WORLD_H_
