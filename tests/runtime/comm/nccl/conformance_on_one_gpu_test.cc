// The conformance cases over NCCL itself, on a machine with one GPU, which all ranks share: they are processes that each
// claim to be a machine of their own (NCCL_HOSTID), so that NCCL connects them by sockets over loopback.

#include <stdlib.h>

#include <chrono>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/launch/run_world.h"
#include "tests/runtime/comm/conformance.h"
#include "tests/runtime/comm/process_ranks.h"
#include "tests/runtime/launch/processes.h"

namespace weft {
namespace {

void SetVariable(const char* name, const std::string& value) { setenv(name, value.c_str(), /*overwrite=*/1); }

void Run(int num_ranks, const std::function<void(World&)>& body) {
  const int port = FreePort();
  RethrowFirst(RunProcesses(num_ranks, [&](int rank, ErrorReport& report) {
    SetVariable("RANK", absl::StrCat(rank));
    SetVariable("WORLD_SIZE", absl::StrCat(num_ranks));
    SetVariable("LOCAL_RANK", absl::StrCat(rank));
    SetVariable("LOCAL_WORLD_SIZE", absl::StrCat(num_ranks));
    SetVariable("MASTER_ADDR", "127.0.0.1");
    SetVariable("MASTER_PORT", absl::StrCat(port));
    SetVariable("NCCL_HOSTID", absl::StrCat("machine ", rank));
    SetVariable("NCCL_SOCKET_IFNAME", "lo");
    SetVariable("NCCL_IB_DISABLE", "1");
    // A rank tells its error before its world ends: NCCL takes its time to let go of what is under way.
    const auto told = [&](World& world) {
      try {
        body(world);
      } catch (const Error& error) {
        report.Fail(error);
        throw;
      }
    };
    RunWorld(num_ranks, told,
             {.backend = Backend::kNccl,
              .device = DeviceType::kCuda,
              .threads_per_rank = 1,
              .comm_timeout = std::chrono::minutes(1)});
  }));
}

INSTANTIATE_TEST_SUITE_P(NcclOnOneGpu, CommConformance,
                         testing::Values(CommBackend{.name = "nccl",
                                                     .run = Run,
                                                     .sweep_ranks = {1, 2, 3},
                                                     .repeats = 0.1,
                                                     .exact_reductions = false,
                                                     .told_difference = 1 << 22}));

}  // namespace
}  // namespace weft
