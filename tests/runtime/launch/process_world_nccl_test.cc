#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "runtime/launch/job_store.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/peer_watch.h"
#include "runtime/launch/process_world.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"
#include "tests/message_of.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

// Rank 0 asks every rank for the name of its GPU; rank 1 has failed by then.
TEST(ProcessWorldNcclTest, ARankThatFailsBeforeItNamesItsGpuIsNamed) {
  RunNcclRanks(1, [](World&) {});  // the fake is registered, and the machine has GPUs
  auto server =
      std::make_unique<TcpStoreServer>(TcpStoreServerOptions{.host = "127.0.0.1", .run_id = "weft"});
  const std::string address = server->address();
  const auto join = [&](std::unique_ptr<TcpStoreServer> own) {
    return std::make_shared<JobStore>(
        std::move(own), std::make_shared<TcpStore>(address, TcpStoreOptions{.run_id = "weft"}), "world/");
  };
  const std::shared_ptr<JobStore> of_rank_0 = join(std::move(server));
  const std::shared_ptr<JobStore> of_rank_1 = join(nullptr);
  TellEarlyFailure(*of_rank_1, /*rank=*/1, /*world_size=*/2, "failed: no GPU");

  LaunchEnvironment environment;
  environment.launcher = "test";
  environment.world_size = 2;
  environment.local_world_size = 2;
  const WorldOptions options = {
      .backend = Backend::kNccl, .device = DeviceType::kCuda, .threads_per_rank = 1};
  EXPECT_EQ(MessageOf([&] { MakeProcessWorldIn(of_rank_0, environment, options); }), "rank 1 failed: no GPU");
}

}  // namespace
}  // namespace weft
