#include "runtime/launch/process_world.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"
#include "runtime/base/open_file_limit.h"
#include "runtime/device/device_queue.h"
#include "runtime/launch/device_backend_choice.h"
#include "runtime/launch/hangs/flight_record.h"
#include "runtime/store/prefix_store.h"

namespace weft {
namespace {

int NumThreads(const LaunchEnvironment& environment, const WorldOptions& options) {
  if (options.threads_per_rank > 0) return options.threads_per_rank;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / environment.local_world_size);
}

std::shared_ptr<JobStore> OpenStore(const LaunchEnvironment& environment, MpiEnvironment* mpi) {
  if (environment.has_address()) return std::make_shared<JobStore>(environment);
  WEFT_CHECK(mpi != nullptr, "no address, and no MPI to tell one");
  return std::make_shared<JobStore>(environment,
                                    [mpi](const std::string& bytes) { return mpi->Broadcast(bytes); });
}

// All ranks have the same worlds, so each counts its own.
int64_t NumberOfWorld(JobStore& store, int rank) {
  return store.launcher_keeps_it() ? store.store()->Add(absl::StrCat("num_worlds/", rank), 1) : 1;
}

// Where groups and watchdogs meet. A launcher's store still has keys of the worlds that the process had before, gloo's addresses
// among them, which those of the next must not read.
std::shared_ptr<Store> MeetingStore(JobStore& store, int64_t number) {
  if (number == 1) return store.store();
  return std::make_shared<PrefixStore>(store.store(), absl::StrCat("world/", number, "/"));
}

// As long as the ranks of a new group wait for each other (GlooOptions, NcclOptions).
constexpr std::chrono::minutes kMeeting(5);

// Returns when all ranks have called it: the last tells them by one key. Waits for the keys of all would cost the store their
// square.
// Errors: DeadlineExceeded naming the ranks that have not come within kMeeting; the store's.
void MeetInStore(Store& store, int rank, int size) {
  const auto key = [](int other) { return absl::StrCat("mpi/", other); };
  const std::string all = "mpi/all";
  store.Set(key(rank), "");
  if (store.Add("mpi/num", 1) == size) store.Set(all, "");
  try {
    store.Wait({all}, kMeeting);
  } catch (const Error& error) {
    if (error.code() != absl::StatusCode::kDeadlineExceeded) throw;
    std::vector<int> missing;
    for (int other = 0; other < size; ++other) {
      if (!store.Check({key(other)})) missing.push_back(other);
    }
    Throw(error.code(), "new world over MPI: rank ", rank, " waited ", kMeeting.count(), " minutes; ranks [",
          absl::StrJoin(missing, ", "), "] have not come");
  }
}

// MPI can begin and end once per process: it goes on until the process ends, for all of its worlds.
const std::shared_ptr<MpiEnvironment>& MpiOfProcess() {
  static const auto mpi = std::make_shared<MpiEnvironment>();
  return mpi;
}

}  // namespace

ProcessWorld::ProcessWorld(const LaunchEnvironment& environment, const WorldOptions& options,
                           std::shared_ptr<MpiEnvironment> mpi, std::shared_ptr<JobStore> store)
    : World(environment.rank, environment.world_size, environment.local_rank,
            NumThreads(environment, options), options),
      environment_(environment),
      comm_timeout_(options.comm_timeout),
      mpi_(std::move(mpi)),
      store_(std::move(store)),
      users_store_(std::make_shared<PrefixStore>(store_->store(), "user/"), [this] { ThrowIfFailed(); }),
      number_(NumberOfWorld(*store_, rank())),
      meeting_store_(MeetingStore(*store_, number_)),
      groups_(MakeGroups(options)),
      watchdog_(environment.world_size, meeting_store_.get(), options.watchdog) {
  peer_watch_ = std::make_unique<PeerWatch>(
      *store_, rank(), size(), [this](int rank, const std::string& how) { PeerIsGone(rank, how); });
  watchdog_.Watch({rank(), &flight_recorder(),
                   [this](absl::StatusCode code, const std::string& message) { FailGroups(code, message); }});
}

std::unique_ptr<ProcessGroups> ProcessWorld::MakeGroups(const WorldOptions& options) {
  // There is no watch yet, and a rank that has failed on its way here says nothing of its device.
  WorldStore store(meeting_store_, [this] { ThrowIfPeerIsGone(*store_); });
  if (ProcessesUseDeviceGroups(options, store, rank(), size(), *allocator())) {
    backend_ = Backend::kNccl;
    return MakeDeviceProcessGroups(DeviceGroupsOf(options.device).make(meeting_store_, rank(), allocator()));
  }
  if (mpi_ == nullptr) return MakeGlooGroups(environment_, meeting_store_);
  backend_ = Backend::kMpi;
  // MPI would wait without end for a process that has left since the world before.
  MeetInStore(store, rank(), size());
  return MakeMpiGroups(*mpi_);
}

void ProcessWorld::FinishWork() {
  World::FinishWork();
  groups_->FinishWork();
  FinishDeviceQueues(*allocator());
}

ProcessWorld::~ProcessWorld() {
  if (!ended_ && std::uncaught_exceptions() > 0) TellFailure("an exception");
  FinishWork();
  watchdog_.Forget(rank(), "has ended");
  groups_->Finish();
  if (gloo_beside_ != nullptr) gloo_beside_->Finish();
  if (!ended_) peer_watch_->Finish();
}

std::shared_ptr<Communicator> ProcessWorld::MakeGroup(const std::string& name,
                                                      const std::vector<int>& ranks) {
  return MakeGroupOn(backend_, name, ranks);
}

ProcessGroups* ProcessWorld::GroupsOn(Backend backend) {
  if (backend == backend_) return groups_.get();
  if (backend != Backend::kGloo) return nullptr;
  const std::lock_guard<std::mutex> lock(beside_mutex_);
  if (gloo_beside_ == nullptr) {
    gloo_beside_ = MakeGlooGroups(environment_, std::make_shared<PrefixStore>(meeting_store_, "beside/"));
    if (!abort_reason_.empty()) gloo_beside_->AbortAll(abort_reason_);
  }
  return gloo_beside_.get();
}

std::shared_ptr<Communicator> ProcessWorld::MakeGroupOn(Backend backend, const std::string& name,
                                                        const std::vector<int>& ranks) {
  ProcessGroups* const groups = GroupsOn(backend);
  if (groups == nullptr) return nullptr;
  std::shared_ptr<Communicator> group = groups->Make(name, ranks, &ledger(), &workers());
  group->set_timeout(comm_timeout_);
  return group;
}

void ProcessWorld::TellFailure(const std::string& message) noexcept {
  ended_ = true;
  WriteFlightRecord();
  peer_watch_->TellFailure(absl::StrCat("failed: ", message));
}

void ProcessWorld::PeerIsGone(int gone, const std::string& how) {
  const std::string message = gone < 0 ? how : absl::StrCat("rank ", gone, " ", how);
  if (gone >= 0) watchdog_.Forget(gone, how);
  WriteFlightRecord();
  FailGroups(absl::StatusCode::kAborted, message);
  groups_->AbortAll(message);  // also what still waits for members to meet
  const std::lock_guard<std::mutex> lock(beside_mutex_);
  abort_reason_ = message;
  if (gloo_beside_ != nullptr) gloo_beside_->AbortAll(message);
}

void ProcessWorld::WriteFlightRecord() noexcept {
  if (environment_.flight_dir.empty()) return;
  const std::lock_guard<std::mutex> lock(flight_mutex_);
  try {
    WriteFlight(environment_.flight_dir, rank(), size(), flight_recorder(),
                {.run_id = environment_.run_id,
                 .generation = environment_.restart_count,
                 .time_ms = absl::ToUnixMillis(absl::Now())});
  } catch (const std::exception&) {
    // The run fails for a better reason.
  }
}

std::unique_ptr<ProcessWorld> MakeProcessWorldIn(const std::shared_ptr<JobStore>& store,
                                                 const LaunchEnvironment& environment,
                                                 const WorldOptions& options,
                                                 const std::shared_ptr<MpiEnvironment>& mpi) {
  try {
    return std::make_unique<ProcessWorld>(environment, options, mpi, store);
  } catch (const std::exception& error) {
    // While this holds the store, and before MPI's end, which waits for the others.
    TellEarlyFailure(*store, environment.rank, environment.world_size,
                     absl::StrCat("failed: ", error.what()));
    throw;
  }
}

namespace {

std::unique_ptr<ProcessWorld> MakeWorldOf(const LaunchEnvironment& environment, const WorldOptions& options,
                                          const std::shared_ptr<MpiEnvironment>& mpi) {
  const std::shared_ptr<JobStore> store = OpenStore(environment, mpi.get());
  LeaveLastWill(*store, environment.rank);
  return MakeProcessWorldIn(store, environment, options, mpi);
}

}  // namespace

std::unique_ptr<ProcessWorld> MakeProcessWorld(const std::optional<LaunchEnvironment>& environment,
                                               const WorldOptions& options) {
  if (!environment.has_value()) {
    Throw(absl::StatusCode::kFailedPrecondition,
          "no launcher has started this process (RANK and WORLD_SIZE are not set, nor what mpirun or srun "
          "set): start it by weft_run, torchrun, mpirun or srun, or run its ranks as threads");
  }
  WEFT_REQUIRE(options.backend != Backend::kLocal,
               "the local backend's ranks are threads of one process: RunRanks, or RunWorld");
  RaiseOpenFileLimit();
  const bool uses_mpi =
      options.backend == Backend::kMpi || (options.backend == Backend::kAuto && environment->uses_mpi) ||
      (options.backend == Backend::kNccl && !environment->has_address() && environment->uses_mpi);
  if (!uses_mpi) {
    WEFT_REQUIRE(
        environment->has_address(), environment->launcher,
        " tells no address where the ranks meet: set MASTER_ADDR (the host of rank 0) and MASTER_PORT, "
        "or use the mpi backend");
    return MakeWorldOf(*environment, options, /*mpi=*/nullptr);
  }
  const std::shared_ptr<MpiEnvironment>& mpi = MpiOfProcess();
  LaunchEnvironment place = *environment;
  WEFT_REQUIRE(mpi->size() == place.world_size, "MPI has ", mpi->size(), " processes, the environment (",
               place.launcher, ") says ", place.world_size,
               ": was this program built with another MPI than the one that started it?");
  place.rank = mpi->rank();
  place.local_rank = mpi->local_rank();
  place.local_world_size = mpi->local_size();
  return MakeWorldOf(place, options, mpi);
}

}  // namespace weft
