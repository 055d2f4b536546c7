#ifndef WEFT_RUNTIME_LAUNCH_WORLD_H_
#define WEFT_RUNTIME_LAUNCH_WORLD_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/thread_pool.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/group_failure.h"
#include "runtime/comm/issue_log.h"
#include "runtime/comm/worker_pool.h"
#include "runtime/device/allocator.h"
#include "runtime/device/device_backend.h"
#include "runtime/launch/backend.h"
#include "runtime/launch/hangs/watchdog_options.h"
#include "runtime/store/store.h"
#include "runtime/trace/span.h"

namespace weft {

// What every way of starting ranks takes.
struct WorldOptions {
  // Where the ranks run. RunRanks and FromEnv are one of them each, and take kAuto, kNccl or their own. With
  // kAuto too, ranks that have a GPU of their own each communicate by NCCL, if the program was built with it.
  Backend backend = Backend::kAuto;
  // Where tensors lie. Rank r of a machine gets its device r modulo their number.
  DeviceType device = DeviceType::kCpu;
  DeviceOptions device_options = {};  // of each rank
  int threads_per_rank = 0;           // 0: the machine's cores divided among its ranks, at least 1
  std::chrono::milliseconds comm_timeout = std::chrono::minutes(10);
  Tracer* tracer = nullptr;       // shared by this process's ranks; null: nothing is traced
  WatchdogOptions watchdog = {};  // explains hangs
  // For debugging: CompareIssueOrder compares, after each step of a Trainer, in which order the ranks have issued
  // their collectives (IssueLog). Costs a text per collective and two small all-gathers per step.
  bool check_issue_order = false;
  // Refuses what does not give the same bits in every run with the same ranks: NCCL's own choice of how it sums. With it
  // NCCL_ALGO and NCCL_PROTO each name one (Ring, Simple). All else always gives them, whatever the threads and the
  // timing: kernels, the other backends' sums, random numbers.
  bool deterministic = false;
};

// What a group has otherwise than the other groups of its world. Members give the same.
struct GroupOptions {
  // What moves its bytes; kAuto: what moves those of the world's groups. Beside NCCL's, ranks that are threads can
  // have kLocal; beside NCCL's and MPI's, ranks that are processes can have kGloo.
  Backend backend = Backend::kAuto;
  // How long its calls wait, unless they say; 0: WorldOptions::comm_timeout.
  std::chrono::milliseconds timeout = std::chrono::milliseconds(0);
};

// All the ranks of a job, seen from one of them: who this rank is, its machine resources, and how it reaches
// the others. Comes from RunRanks (ranks are threads) or FromEnv (processes); passed down from main, never
// global.
class World {
 public:
  virtual ~World() = default;

  // The world of this process, one rank of the job that a launcher has started: weft_run, torchrun,
  // Kubernetes, mpirun, srun. What it reads of the environment: runtime/launch/launch_environment.h. Link
  // //runtime/launch:from_env. At most one at a time in a process.
  //
  // Errors: FailedPrecondition if no launcher has started this process; InvalidArgument for variables that
  //         are missing or wrong; those of the store and the backend in meeting the others, within minutes.
  static std::unique_ptr<World> FromEnv(const WorldOptions& options = {});

  int rank() const { return rank_; }
  int size() const { return size_; }

  ThreadPool& pool() { return *pool_; }
  const std::shared_ptr<Allocator>& allocator() const { return allocator_; }
  // Of the rank's second memory, for what is offloaded (MakeHostAllocator). Made when it is first asked for, by the
  // rank's thread.
  // Errors: as MakeHostAllocator.
  const std::shared_ptr<Allocator>& host_allocator();
  Ledger& ledger() { return ledger_; }
  Tracer* tracer() { return tracer_; }  // null: nothing is traced

  // A communicator among `ranks` (world ranks, ascending, this one among them). Only the members call it; two
  // calls with the same ranks give two independent groups, matched in call order.
  // Errors: InvalidArgument for ranks that are unsorted, repeated, out of range or lack this one; for a backend
  //         that this world's ranks cannot have; for a timeout below 0.
  std::shared_ptr<Communicator> NewGroup(const std::string& name, const std::vector<int>& ranks,
                                         const GroupOptions& options = {});

  // The same for tensors in the ranks' second memory: over what moves the CPU's bytes, where the world's groups move
  // only a GPU's.
  std::shared_ptr<Communicator> NewHostGroup(const std::string& name, const std::vector<int>& ranks);

  // The keys that the ranks of this world share (runtime/store/store.h): addresses, numbers, "wait until all
  // have come", for what is no collective. Apart from the keys that Weft itself keeps, and empty when the job
  // begins or is restarted.
  //
  // Cost:   ranks as threads: a lock. Processes: a call to the process that keeps the job's store, about 0.3 ms
  //         on one machine; not in the ledger. A wait costs one call per 100 ms.
  // Errors: as in store.h; Get and Wait throw Aborted soon after a rank has failed. Unimplemented from a world
  //         that has none: one that RunRanks, RunWorld or FromEnv did not make.
  virtual Store& store();

  // A thread that runs tasks of this rank in the order submitted, such as collectives beside computing. What it
  // has is run to the end by FinishWork; no task outlives the world.
  std::shared_ptr<Worker> StartWorker() { return workers_.Start(); }

  // What this rank's communicators did last, and what it does between them: SetActivity("data loader").
  FlightRecorder& flight_recorder() { return *flight_recorder_; }
  // The same for what may outlive the world, as a model may.
  const std::shared_ptr<FlightRecorder>& shared_flight_recorder() const { return flight_recorder_; }

  // With WorldOptions::check_issue_order: compares the order in which the ranks have issued their collectives since
  // the last call of this; otherwise does nothing. Trainer calls it after each step; a loop of one's own may. All
  // ranks call it at the same place of their program, when they have issued everything up to there.
  // Errors: FailedPrecondition on every rank, naming the first difference: which rank, the position, and what each of
  //         two ranks has issued there.
  void CompareIssueOrder();

  // Ends all groups of this rank with this error, those still to come too: as Communicator::Fail. Any thread.
  void FailGroups(absl::StatusCode code, const std::string& message);

  // Throws what has ended a group while operations of it, other than barriers, were under way in a device's stream. The stream
  // goes on behind them, and their tensors hold anything: whoever keeps what has been copied to the host asks this behind the copy, since the
  // operations' calls have returned, and the group's next call may never come. Nothing on the CPU, where calls and waits throw.
  // Any thread.
  // Errors: the first such group's, from then on.
  virtual void ThrowIfCutOff() const {}

  // Runs the asynchronous operations that are still queued to the end; none can be issued any more. What owns
  // the world calls it when the rank's function has returned.
  virtual void FinishWork() {
    workers_.Finish();
    issue_group_ = nullptr;
  }

 protected:
  // On the rank's thread. `local_rank`: which of this machine's ranks it is.
  // Errors: those of MakeAllocator.
  World(int rank, int size, int local_rank, int num_threads, const WorldOptions& options);
  World(int rank, int size, int num_threads, std::shared_ptr<Allocator> allocator, Tracer* tracer);

  // As NewGroup, whose checks it has passed.
  virtual std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) = 0;

  // The same over a backend that is not kAuto: one that this world's ranks have too, or null.
  virtual std::shared_ptr<Communicator> MakeGroupOn(Backend backend, const std::string& name,
                                                    const std::vector<int>& ranks);

  WorkerPool& workers() { return workers_; }

  // Throws the error of FailGroups, once there is one. Any thread.
  void ThrowIfFailed() const { failure_.ThrowIfFailed(); }

 private:
  std::shared_ptr<Communicator> AddGroup(std::shared_ptr<Communicator> group);

  int rank_;
  int size_;
  std::unique_ptr<ThreadPool> pool_;
  DeviceOptions device_options_;
  std::shared_ptr<Allocator> allocator_;
  std::shared_ptr<Allocator> host_allocator_;  // null: not asked for yet
  Ledger ledger_;
  std::shared_ptr<FlightRecorder> flight_recorder_ = std::make_shared<FlightRecorder>();
  Tracer* tracer_;
  std::unique_ptr<IssueLog> issue_log_;  // null: the order is not checked
  std::shared_ptr<Communicator> issue_group_;
  int64_t num_compared_ = 0;  // calls of CompareIssueOrder
  std::mutex groups_mutex_;
  std::vector<std::weak_ptr<Communicator>> groups_;
  GroupFailure failure_;
  WorkerPool workers_;  // last: its threads write to the ledger and the recorder
};

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_WORLD_H_
