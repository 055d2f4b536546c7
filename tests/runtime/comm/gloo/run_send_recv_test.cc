// Batches of messages over TCP whose peers come late or die.

#include "runtime/comm/gloo/run_send_recv.h"

#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/comm/gloo/gloo_ranks.h"

namespace weft {
namespace {

using testing::HasSubstr;

Tensor Of(World& world, int64_t num_bytes) {
  return Tensor::Empty(world.allocator(), DType::kU8, {num_bytes});
}

// What rank 0 is told when it waits for rank 1, which sends nothing, and for rank 2, which sends many blocks.
std::string MessageOfTheTimeout(std::chrono::milliseconds timeout) {
  const auto outcomes = RunGlooProcesses(3,
                                         [&](GlooWorld& world) {
                                           constexpr int64_t kManyBlocks = 4 << 20;
                                           const auto group = world.NewGroup("pp", {0, 1, 2});
                                           const Tensor of_one = Of(world, kManyBlocks);
                                           const Tensor of_two = Of(world, kManyBlocks);
                                           Store& gate = world.hub().store();
                                           if (world.rank() == 2) group->Send(of_two, 0);
                                           if (world.rank() != 0) {
                                             gate.Get("told", std::chrono::seconds(50));
                                             return;
                                           }
                                           group->set_timeout(timeout);
                                           try {
                                             group->SendRecv({}, {{1, of_one}, {2, of_two}});
                                           } catch (const Error&) {
                                             gate.Set("told", "yes");
                                             throw;
                                           }
                                         },
                                         {.hub = OverTcp});
  return outcomes[0].error.has_value() ? outcomes[0].error->message() : "no error";
}

// On a busy machine rank 2 may not come in time either. Then the timeout was too short.
TEST(GlooSendRecvTest, ATimeoutOverTcpNamesOnlyThoseWhoseBytesAreMissing) {
  std::chrono::milliseconds timeout(500);
  std::string message = MessageOfTheTimeout(timeout);
  while (message.find("[1, 2]") != std::string::npos && timeout < std::chrono::seconds(5)) {
    message = MessageOfTheTimeout(timeout *= 4);
  }
  EXPECT_THAT(message, HasSubstr(absl::StrCat("world rank 0 waited ", timeout.count(),
                                              " ms; world ranks [1] have not arrived")));
}

// Rank 2's message comes while rank 0 waits for somebody that knows why rank 1 is gone: into memory that is still there,
// which AddressSanitizer sees.
TEST(GlooSendRecvTest, AMessageThatComesBehindALostPeerFindsItsPlace) {
  const auto options = [](int rank) {
    GlooOptions options = OverTcp(rank);
    options.reason_takes = std::chrono::seconds(1);
    return options;
  };
  const auto outcomes = RunGlooProcesses(3,
                                         [](GlooWorld& world) {
                                           const auto group = world.NewGroup("pp", {0, 1, 2});
                                           const Tensor of_one = Of(world, 1000);
                                           const Tensor of_two = Of(world, 1000);
                                           group->Barrier();
                                           if (world.rank() == 0) {
                                             group->SendRecv({}, {{1, of_one}, {2, of_two}});
                                           } else if (world.rank() == 1) {
                                             _exit(0);
                                           } else {
                                             std::this_thread::sleep_for(std::chrono::milliseconds(200));
                                             group->Send(of_two, 0);
                                           }
                                         },
                                         {.hub = options});
  ASSERT_TRUE(outcomes[0].error.has_value()) << "exit code " << outcomes[0].exit_code;
  EXPECT_EQ(outcomes[0].error->code(), absl::StatusCode::kAborted);
  EXPECT_THAT(outcomes[0].error->message(), HasSubstr("world rank 1 has closed its connection"));
}

}  // namespace
}  // namespace weft
