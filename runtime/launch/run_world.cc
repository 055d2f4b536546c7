#include "runtime/launch/run_world.h"

#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/process_world.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

// Names the launcher in messages.
std::string NameOf(const LaunchEnvironment& environment) {
  return environment.launcher == "RANK" ? "weft_run, torchrun or whatever else has set RANK"
                                        : environment.launcher;
}

// The environment, if this process is one rank of a job.
std::optional<LaunchEnvironment> ProcessEnvironment(Backend backend) {
  std::optional<LaunchEnvironment> environment = ParseLaunchEnvironment(LauncherVariables());
  switch (backend) {
    case Backend::kAuto:
    case Backend::kNccl:
      return environment;
    case Backend::kLocal:
      WEFT_REQUIRE(!environment.has_value() || environment->world_size == 1,
                   "--backend=local, but a launcher (", NameOf(*environment), ") has started this as rank ",
                   environment->rank, " of ", environment->world_size,
                   ": each of them would run all ranks; use --backend=auto, or start it once");
      return std::nullopt;
    case Backend::kGloo:
      WEFT_REQUIRE(
          environment.has_value(),
          "--backend=gloo, but no launcher has started this: ranks are processes then, started as by "
          "weft_run --nproc-per-node=4 PROGRAM");
      return environment;
    case Backend::kMpi:
      WEFT_REQUIRE(environment.has_value(),
                   "--backend=mpi, but no launcher has started this: ranks are processes then, started as by "
                   "mpirun -n 4 PROGRAM");
      return environment;
  }
  return std::nullopt;
}

// Rank 0 sets it in the job's store, for this world, when its body has returned.
constexpr char kDoneKey[] = "weft/spares/done";
// weft_run's agents look for it, below what JobStore and ProcessWorld put before it (tools/launcher/launch.cc).
constexpr char kSavedKey[] = "weft/saved";

std::string DoneKey(const ProcessWorld& world) { return absl::StrCat(kDoneKey, "/", world.number()); }

// A wait in the store ends when a rank fails.
void WaitAsSpare(ProcessWorld& world) {
  world.flight_recorder().SetActivity("spare");
  world.store().Get(DoneKey(world), std::chrono::hours(24 * 365));
}

void RunWithSpares(int num_ranks, const std::function<void(World&)>& body, ProcessWorld& world) {
  if (world.size() == num_ranks) return body(world);
  if (world.rank() >= num_ranks) return WaitAsSpare(world);
  if (world.rank() == 0) {
    const int last = world.size() - 1;
    std::cerr << absl::StrCat(
        "weft: ", last == num_ranks ? "rank " : absl::StrCat("ranks ", num_ranks, " to "), last,
        last == num_ranks ? " is a spare" : " are spares", ": the mesh has ", num_ranks, " of the ",
        world.size(), " ranks\n");
  }
  body(world);
  if (world.rank() == 0) world.store().Set(DoneKey(world), "");
}

}  // namespace

std::optional<int> NumLaunchedRanks(Backend backend) {
  const std::optional<LaunchEnvironment> environment = ProcessEnvironment(backend);
  if (!environment) return std::nullopt;
  return environment->world_size;
}

bool RanksAreProcesses(Backend backend) { return ProcessEnvironment(backend).has_value(); }

namespace {

void RunAnyWorld(int num_ranks, bool allow_spares, const std::function<void(World&)>& body,
                 const WorldOptions& options) {
  const std::optional<LaunchEnvironment> environment = ProcessEnvironment(options.backend);
  if (!environment.has_value()) return RunRanks(num_ranks, body, options);
  const bool has_spares = allow_spares && environment->world_size > num_ranks;
  WEFT_REQUIRE(environment->world_size == num_ranks || has_spares, "the launcher (", NameOf(*environment),
               ") has started ", environment->world_size, " processes, but the mesh has ", num_ranks,
               " ranks: start one process per rank, ", num_ranks, ", or change the mesh (--mesh)");
  const std::unique_ptr<ProcessWorld> world = MakeProcessWorld(environment, options);
  try {
    RunWithSpares(num_ranks, body, *world);
  } catch (const std::exception& error) {
    world->TellFailure(error.what());
    throw;
  }
}

}  // namespace

void RunWorld(int num_ranks, const std::function<void(World&)>& body, const WorldOptions& options) {
  RunAnyWorld(num_ranks, /*allow_spares=*/false, body, options);
}

void RunWorldWithSpares(int num_ranks, const std::function<void(World&)>& body, const WorldOptions& options) {
  RunAnyWorld(num_ranks, /*allow_spares=*/true, body, options);
}

void NoteSave(World& world) { world.store().Add(kSavedKey, 1); }

}  // namespace weft
