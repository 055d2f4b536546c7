// What the signals of a training program do, in processes of their own.

#include "examples/stop_signal.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace weft {
namespace {

void ExpectAlive(int signal) {
  if (StopSignal() != signal) _exit(1);
}

TEST(StopSignalDeathTest, RepeatsWithinASecondAreOneWish) {
  EXPECT_EQ(StopSignal(), 0);
  EXPECT_EXIT(
      {
        CatchStopSignals();
        raise(SIGTERM);
        raise(SIGTERM);
        raise(SIGINT);
        ExpectAlive(SIGTERM);
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopSignalDeathTest, ALaterSignalEndsTheProgram) {
  EXPECT_EXIT(
      {
        CatchStopSignals();
        raise(SIGINT);
        usleep(1'100'000);
        ExpectAlive(SIGINT);
        raise(SIGTERM);
        _exit(0);
      },
      testing::KilledBySignal(SIGTERM), "");
}

// It may hear of the end of another node, and seconds later be signalled with all processes of its own.
TEST(StopSignalDeathTest, UnderWeftRunTheLauncherCounts) {
  EXPECT_EXIT(
      {
        for (const char* const name : {"RANK", "LOCAL_RANK", "MASTER_PORT"}) setenv(name, "0", 1);
        for (const char* const name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "WEFT_AGENT_STORE"})
          setenv(name, "1", 1);
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        setenv("MASTER_PORT", "29500", 1);
        CatchStopSignals();
        raise(SIGTERM);
        usleep(1'100'000);
        raise(SIGTERM);
        ExpectAlive(SIGTERM);
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weft
