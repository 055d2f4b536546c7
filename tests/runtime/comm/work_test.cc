#include "runtime/comm/work.h"

#include <thread>

#include "gtest/gtest.h"
#include "runtime/comm/work_state.h"

namespace weft {
namespace {

TEST(WorkTest, WaitReturnsWhenAnotherThreadFinishesIt) {
  auto state = std::make_shared<HostWorkState>();
  const Work work(state);
  const Work copy = work;
  EXPECT_FALSE(work.Test());
  EXPECT_FALSE(work.WaitFor(std::chrono::milliseconds(1)));
  std::thread finisher([&] { state->Finish(std::nullopt); });
  work.Wait();
  EXPECT_TRUE(copy.Test());
  EXPECT_TRUE(copy.WaitFor(std::chrono::milliseconds(0)));
  finisher.join();
}

TEST(WorkTest, ATimeoutMayBeForEver) {
  auto state = std::make_shared<HostWorkState>();
  const Work work(state);
  std::thread finisher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    state->Finish(std::nullopt);
  });
  EXPECT_TRUE(work.WaitFor(std::chrono::milliseconds::max()));
  finisher.join();
}

TEST(WorkTest, EveryReaderGetsTheError) {
  auto state = std::make_shared<HostWorkState>();
  const Work work(state);
  state->Finish(Error(absl::StatusCode::kAborted, "a peer failed"));
  EXPECT_TRUE(work.Test());
  for (int i = 0; i < 2; ++i) {
    try {
      i == 0 ? work.Wait() : static_cast<void>(work.WaitFor(std::chrono::milliseconds(0)));
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
      EXPECT_EQ(error.message(), "a peer failed");
    }
  }
}

}  // namespace
}  // namespace weft
