#include "runtime/launch/run_world.h"

#include <memory>
#include <optional>

#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/process_world.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

// The environment, if this process is one rank of a job.
std::optional<LaunchEnvironment> ProcessEnvironment(Backend backend) {
  std::optional<LaunchEnvironment> environment = ParseLaunchEnvironment(LauncherVariables());
  switch (backend) {
    case Backend::kAuto:
    case Backend::kNccl:
      return environment;
    case Backend::kLocal:
      WEFT_REQUIRE(!environment.has_value() || environment->world_size == 1,
                   "--backend=local, but a launcher (", environment->launcher, ") has started this as rank ",
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

}  // namespace

bool RanksAreProcesses(Backend backend) { return ProcessEnvironment(backend).has_value(); }

void RunWorld(int num_ranks, const std::function<void(World&)>& body, const WorldOptions& options) {
  const std::optional<LaunchEnvironment> environment = ProcessEnvironment(options.backend);
  if (!environment.has_value()) {
    return RunRanks(num_ranks, body, options);
  }
  WEFT_REQUIRE(environment->world_size == num_ranks, "the launcher (", environment->launcher,
               ") has started ", environment->world_size, " processes, but the mesh has ", num_ranks,
               " ranks: one process a rank is needed");
  const std::unique_ptr<ProcessWorld> world = MakeProcessWorld(environment, options);
  try {
    body(*world);
  } catch (const std::exception& error) {
    world->TellFailure(error.what());
    throw;
  }
}

}  // namespace weft
