// Who counts as silent and when, by a clock of the test's own.

#include "tools/launcher/rendezvous/liveness.h"

#include <chrono>

#include "gtest/gtest.h"
#include "runtime/store/hash_store.h"
#include "runtime/store/tcp_store_options.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using Life = Liveness::Life;

struct Watched {
  explicit Watched(milliseconds suspicion)
      : node(store, suspicion / 10, suspicion, [this] { return now; }),
        watcher(store, suspicion / 10, suspicion, [this] { return now; }) {}

  // The node beats, or is stopped, for that long; the watcher looks every 20 ms.
  Life After(milliseconds time, bool beats) {
    for (milliseconds passed{0}; passed < time; passed += milliseconds(20)) {
      now += milliseconds(20);
      if (beats) node.Beat("a");
      life = watcher.Of("a");
    }
    return life;
  }

  HashStore store;
  Liveness::Clock::time_point now = Liveness::Clock::time_point(std::chrono::hours(1));
  Liveness node;
  Liveness watcher;
  Life life = Life::kUnknown;
};

TEST(LivenessTest, ANodeIsSilentAfterTheSuspicionTimeAndNotBefore) {
  for (const milliseconds suspicion : {milliseconds(500), milliseconds(5000), milliseconds(20'000)}) {
    Watched watched(suspicion);
    EXPECT_EQ(watched.After(10 * suspicion, /*beats=*/true), Life::kAlive);
    // Its last sign of life is up to two intervals older than the look that saw it.
    EXPECT_EQ(watched.After(suspicion * 7 / 10, /*beats=*/false), Life::kAlive);
    EXPECT_EQ(watched.After(suspicion * 5 / 10, /*beats=*/false), Life::kSilent);
    EXPECT_EQ(watched.After(suspicion, /*beats=*/true), Life::kAlive);
  }
}

TEST(LivenessTest, ATimeInWhichTheWatcherItselfWasStoppedProvesNothing) {
  Watched watched(milliseconds(5000));
  EXPECT_EQ(watched.After(milliseconds(10'000), /*beats=*/true), Life::kAlive);
  watched.now += std::chrono::hours(1);
  EXPECT_EQ(watched.After(milliseconds(1000), /*beats=*/false), Life::kAlive);
  EXPECT_EQ(watched.After(milliseconds(5000), /*beats=*/false), Life::kSilent);
}

// A store that begins without a journal knows nothing.
TEST(LivenessTest, AStoreThatHasForgottenIsNoSignOfLife) {
  for (const bool beats : {false, true}) {
    Watched watched(milliseconds(5000));
    EXPECT_EQ(watched.After(milliseconds(10'000), /*beats=*/true), Life::kAlive);
    watched.After(milliseconds(4000), beats);
    watched.store.Delete("beat/a");
    EXPECT_EQ(watched.After(milliseconds(2000), beats), beats ? Life::kAlive : Life::kSilent);
    EXPECT_EQ(watched.After(milliseconds(10'000), beats), beats ? Life::kAlive : Life::kSilent);
  }
}

TEST(LivenessTest, AConnectionsKeepaliveIsTheSuspicionTime) {
  EXPECT_EQ(KeepaliveOf(milliseconds(5000)), StoreKeepalive());
  for (const int suspicion : {10, 501, 5000, 60'000}) {
    const StoreKeepalive keepalive = KeepaliveOf(milliseconds(suspicion));
    EXPECT_EQ((keepalive.interval + keepalive.timeout).count(), suspicion);
    EXPECT_GT(keepalive.interval.count(), 0);
  }
  EXPECT_EQ(InvalidArgumentMessage([] { KeepaliveOf(milliseconds(9)); }),
            "a suspicion time is 10 ms or more, got 9 ms");
}

}  // namespace
}  // namespace weft
