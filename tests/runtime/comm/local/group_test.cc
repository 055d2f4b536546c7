// What a member makes of peers that leave while it waits.

#include "runtime/comm/local/group.h"

#include <chrono>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

constexpr std::chrono::milliseconds kLong = std::chrono::minutes(5);

// The peer does what is awaited and departs, both between this member's look at who is missing and its look at who has
// departed: it has come.
TEST(LocalGroupTest, WhoComesAndDepartsBetweenTwoLooksHasCome) {
  LocalGroup group("dp", {0, 1, 2}, /*spin=*/false);
  group.MarkDeparted(2);  // so that the first look is at once
  bool has_come = false;
  const auto missing = [&]() -> std::vector<int> {
    if (has_come) return {};
    has_come = true;
    group.MarkDeparted(1);
    return {1};
  };
  group.AwaitReady(
      0, [&] { return has_come; }, missing, [] { return std::string("send"); }, kLong);
  EXPECT_FALSE(group.failed());
}

TEST(LocalGroupTest, WhoHasDepartedAndNotComeEndsTheGroup) {
  LocalGroup group("dp", {0, 1, 2}, /*spin=*/false);
  group.MarkDeparted(1);
  const auto missing = [] { return std::vector<int>{1}; };
  EXPECT_EQ(MessageOf([&] {
              group.AwaitReady(
                  0, [] { return false; }, missing, [] { return std::string("send"); }, kLong);
            }),
            "send: world rank 0 waits for world ranks [1], whose rank function has returned");
}

}  // namespace
}  // namespace weft
