#include "tests/runtime/comm/gloo/gloo_ranks.h"

#include "absl/strings/str_cat.h"
#include "runtime/comm/gloo/communicator.h"
#include "runtime/store/file_store.h"

namespace weft {

GlooWorld::GlooWorld(int rank, int size, std::shared_ptr<GlooHub> hub, std::chrono::milliseconds timeout)
    : World(rank, size, /*num_threads=*/1, MakeCpuAllocator(), /*tracer=*/nullptr),
      hub_(std::move(hub)),
      timeout_(timeout) {}

std::shared_ptr<Communicator> GlooWorld::MakeGroup(const std::string& name, const std::vector<int>& ranks) {
  std::shared_ptr<Communicator> group = MakeGlooCommunicator(hub_, name, ranks, &ledger(), &workers());
  group->set_timeout(timeout_);
  return group;
}

std::vector<RankOutcome> RunGlooProcesses(int num_ranks, const std::function<void(GlooWorld&)>& body,
                                          const GlooRanksOptions& options) {
  const ShortFolder folder;
  return RunProcesses(
      num_ranks,
      [&](int rank, ErrorReport& report) {
        GlooOptions hub_options = options.hub(rank);
        hub_options.ranks_on_host = num_ranks;
        const auto hub = std::make_shared<GlooHub>(std::make_shared<FileStore>(folder.path()), rank,
                                                   num_ranks, hub_options);
        GlooWorld world(rank, num_ranks, hub, options.timeout);
        const auto fail = [&](const Error& error) {
          report.Fail(error);
          hub->AbortAll(absl::StrCat("rank ", rank, ": ", error.message()));
        };
        try {
          body(world);
        } catch (const Error& error) {
          fail(error);
        } catch (const std::exception& error) {
          fail(Error(absl::StatusCode::kUnknown, error.what()));
        }
        world.FinishWork();
        hub->Finish();
      },
      options.deadline);
}

void RunGlooRanks(int num_ranks, const std::function<void(GlooWorld&)>& body,
                  const GlooRanksOptions& options) {
  RethrowFirst(RunGlooProcesses(num_ranks, body, options));
}

GlooOptions OverTcp(int) { return {.path = GlooPath::kTcp, .address = "127.0.0.1"}; }

GlooOptions TwoToAHost(int rank) {
  return {.address = "127.0.0.1", .host_identity = absl::StrCat("host ", rank / 2)};
}

}  // namespace weft
