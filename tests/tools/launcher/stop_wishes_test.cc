// Which signals of a launcher are one wish of its user, by a clock of the test's own.

#include "tools/launcher/processes/stop_wishes.h"

#include <signal.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

constexpr pid_t kGuard = 100;
constexpr pid_t kManager = 1;

struct Came {
  milliseconds at{0};
  pid_t sender = 0;
  int number = SIGTERM;
};

// Which of them are wishes: 1 for each that is one, otherwise 0.
std::string WishesIn(const std::vector<Came>& signals) {
  StopWishes wishes(kGuard);
  std::string result;
  for (const Came& came : signals) {
    const StopWishes::Clock::time_point now(std::chrono::hours(1) + came.at);
    result += wishes.Note({.number = came.number, .sender = came.sender}, now) ? '1' : '0';
  }
  return result;
}

TEST(StopWishesTest, ASignalToEveryProcessIsOneWish) {
  EXPECT_EQ(WishesIn({{milliseconds(0), kManager}, {milliseconds(2), kGuard}}), "10");
  EXPECT_EQ(WishesIn({{milliseconds(0), kGuard}, {milliseconds(2), kManager}}), "10");
  // A guard that had to wait for its turn.
  EXPECT_EQ(WishesIn({{milliseconds(0), kManager}, {milliseconds(20'000), kGuard}}), "10");
  // SIGTERM and SIGHUP, as a service manager may send them.
  EXPECT_EQ(WishesIn({{milliseconds(0), kManager},
                      {milliseconds(0), kManager, SIGHUP},
                      {milliseconds(3), kGuard},
                      {milliseconds(3), kGuard, SIGHUP}}),
            "1000");
}

TEST(StopWishesTest, WhatComesTwiceWithinASecondIsOneWish) {
  EXPECT_EQ(WishesIn({{milliseconds(0), kGuard, SIGINT}, {milliseconds(999), kGuard, SIGINT}}), "10");
  EXPECT_EQ(WishesIn({{milliseconds(0), kManager}, {milliseconds(999), kManager}}), "10");
}

TEST(StopWishesTest, WhoeverAsksAgainIsHeard) {
  EXPECT_EQ(WishesIn({{milliseconds(0), kGuard, SIGINT}, {milliseconds(1000), kGuard, SIGINT}}), "11");
  // Also by a signal to all, of which one part is late.
  EXPECT_EQ(WishesIn({{milliseconds(0), kManager},
                      {milliseconds(1), kGuard},
                      {milliseconds(5000), kManager},
                      {milliseconds(5001), kGuard},
                      {milliseconds(9000), kGuard}}),
            "10101");
}

}  // namespace
}  // namespace weft
