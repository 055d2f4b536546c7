#include "dtensor/checkpoint/state/agreement.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

// Longer than one look at the store.
constexpr milliseconds kLate(500);

// Rank 0 waits for another's report in the first round, the others for its word in the second.
TEST(AgreementTest, ATimeoutMayBeForEver) {
  RunRanks(3, [&](World& world) {
    Agreement agreement(world, milliseconds::max());
    const auto conclude = [](const std::vector<std::string>& reports) {
      return absl::StrCat(reports[0], reports[1], reports[2]);
    };
    for (const int late : {2, 0}) {
      const auto part = [&] {
        if (world.rank() == late) std::this_thread::sleep_for(kLate);
        return absl::StrCat(world.rank());
      };
      EXPECT_EQ(agreement.Agree({.part = part, .conclude = conclude}), "012")
          << "rank " << late << " is late";
    }
  });
}

TEST(AgreementTest, ARankThatIsLateEndsTheRound) {
  RunRanks(2, [&](World& world) {
    Agreement agreement(world, milliseconds(50));
    const auto part = [&] {
      if (world.rank() == 1) world.store().Get("rank 0 has given up", std::chrono::minutes(1));
      return std::string();
    };
    try {
      agreement.Agree({.part = part});
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
    }
    if (world.rank() == 0) world.store().Set("rank 0 has given up", "");
  });
}

TEST(AgreementTest, ATimeoutIsAboveZero) {
  RunRanks(1, [&](World& world) {
    EXPECT_EQ(MessageOf([&] { Agreement(world, milliseconds(-5)); }),
              "checkpoints: a timeout of -5 ms; expected more than 0");
  });
}

}  // namespace
}  // namespace weft
