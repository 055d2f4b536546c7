#include "runtime/comm/work.h"

#include <stdexcept>
#include <string>
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

// Neither a poll of the work itself nor the thread that finishes it runs what comes then.
TEST(WorkTest, AContinuationRunsOnceAtTheNextPoll) {
  auto state = std::make_shared<HostWorkState>();
  const Work work(state);
  int num_calls = 0;
  const Work then = work.Then([&] { ++num_calls; });
  const Work last = then.Then([&] { num_calls *= 10; });
  EXPECT_FALSE(then.Test());
  EXPECT_FALSE(last.Test());
  EXPECT_FALSE(last.WaitFor(std::chrono::milliseconds(1)));
  std::thread finisher([&] { state->Finish(std::nullopt); });
  finisher.join();
  work.Wait();
  EXPECT_TRUE(work.Test());
  EXPECT_EQ(num_calls, 0);
  EXPECT_TRUE(last.Test());  // and what is before it
  EXPECT_EQ(num_calls, 10);
  then.Wait();
  last.Wait();
  Work::WaitInOrder({work, then, last});
  EXPECT_EQ(num_calls, 10);
}

TEST(WorkTest, AContinuationOfAFinishedWorkWaitsForAPollToo) {
  int num_calls = 0;
  const Work then = Work().Then([&] { ++num_calls; });
  EXPECT_EQ(num_calls, 0);
  then.WaitOnWorker();  // another thread's: it waits for the operation alone
  EXPECT_EQ(num_calls, 0);
  then.Wait();
  EXPECT_EQ(num_calls, 1);
}

TEST(WorkTest, WaitRunsAContinuationBehindTheWork) {
  auto state = std::make_shared<HostWorkState>();
  bool finished = false;
  const Work then = Work(state).Then([&] { EXPECT_TRUE(finished); });
  std::thread finisher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    finished = true;
    state->Finish(std::nullopt);
  });
  then.Wait();
  finisher.join();
}

std::string MessageOfWait(const Work& work) {
  try {
    work.Wait();
  } catch (const Error& error) {
    return std::string(error.message());
  }
  return "";
}

TEST(WorkTest, WhoeverWaitsGetsAContinuationsError) {
  const Work then = Work().Then([] { Throw(absl::StatusCode::kAborted, "cannot unpack"); });
  bool ran = false;
  const Work behind = then.Then([&] { ran = true; });
  EXPECT_TRUE(then.Test());  // does not throw
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(MessageOfWait(then), "cannot unpack");
    EXPECT_EQ(MessageOfWait(behind), "cannot unpack");
    EXPECT_TRUE(behind.Test());
  }
  EXPECT_FALSE(ran);
  EXPECT_EQ(MessageOfWait(Work().Then([] { throw std::runtime_error("not an Error"); })), "not an Error");
}

TEST(WorkTest, NothingComesBehindAWorkThatFails) {
  for (const bool polls_first : {false, true}) {
    auto state = std::make_shared<HostWorkState>();
    bool ran = false;
    const Work then = Work(state).Then([&] { ran = true; });
    state->Finish(Error(absl::StatusCode::kAborted, "a peer failed"));
    if (polls_first) {
      EXPECT_TRUE(then.Test());
    }
    EXPECT_EQ(MessageOfWait(then), "a peer failed");
    EXPECT_EQ(MessageOfWait(then), "a peer failed");
    EXPECT_TRUE(then.Test());
    EXPECT_FALSE(ran);
  }
}

// What a continuation holds is let go of when it has run.
TEST(WorkTest, AContinuationIsDroppedBehindItsRun) {
  auto held = std::make_shared<int>(1);
  const Work then = Work().Then([held] {});
  EXPECT_EQ(held.use_count(), 2);
  EXPECT_TRUE(then.Test());
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace weft
