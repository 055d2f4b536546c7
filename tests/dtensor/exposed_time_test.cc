// What of a reader's wait for a lane counts as waiting for peers and what as moving. The peer comes late by a delay that
// both ranks' clock measures, and not before the reader waits: what is asserted holds on however slow a machine.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/functions.h"
#include "dtensor/redistribute_each.h"
#include "runtime/comm/flight_clock.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

constexpr int64_t kDelayNs = 20'000'000;

void PassTime(int64_t nanoseconds) {
  const int64_t end_ns = FlightClock() + nanoseconds;
  while (FlightClock() < end_ns) std::this_thread::yield();
}

bool IsRunning(const FlightRecorder& recorder) {
  const std::vector<FlightEntry> entries = recorder.Snapshot().entries;
  return std::any_of(entries.begin(), entries.end(), [](const FlightEntry& entry) {
    return entry.async && entry.state == FlightEntry::State::kRunning;
  });
}

// A term of a sum over two ranks.
DTensor Addend(const IntrusivePtr<MeshContext>& context) {
  return Full(context, DType::kF32, {1000}, 1).Redistribute(Layout::Parse("[-] P{dp}", context->mesh()));
}

DTensor Move(const DTensor& source, const char* to, Lane lane) {
  return RedistributeEach({{.source = source, .to = Layout::Parse(to, source.context()->mesh())}}, lane)[0];
}

struct Way {
  std::string name;
  std::function<DTensor(const DTensor&)> issue;  // returns what is read
};

std::vector<Way> Ways() {
  return {{"alone", [](const DTensor& x) { return Move(x, "[-]", Lane::kGrad); }},
          {"behind_another",
           [](const DTensor& x) {
             Move(x, "[-]", Lane::kGrad);
             return Move(x, "[dp]", Lane::kGrad);
           }},
          {"moved_on_by_another_lane",
           [](const DTensor& x) { return Move(Move(x, "[dp]", Lane::kGrad), "[-]", Lane::kParam); }}};
}

class ExposedTimeTest : public testing::TestWithParam<Way> {};

TEST_P(ExposedTimeTest, APeerThatIsLateIsWaitedFor) {
  FlightRecorder* reader = nullptr;
  std::latch has_begun(2);
  int64_t late_from_ns = 0, late_until_ns = 0;
  RunRanks(2, [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("dp=2"));
    const DTensor x = Addend(context);
    for (const Lane lane : {Lane::kGrad, Lane::kParam}) context->Group({0}, lane);
    if (world.rank() == 0) reader = &world.flight_recorder();
    has_begun.arrive_and_wait();
    if (world.rank() == 1) {
      while (reader->Snapshot().awaited == 0) std::this_thread::yield();
      late_from_ns = FlightClock();
      PassTime(kDelayNs);
      late_until_ns = FlightClock();
      GetParam().issue(x).ToLocal();
      return;
    }
    const DTensor moved = GetParam().issue(x);
    while (!IsRunning(*reader)) std::this_thread::yield();
    PassTime(kDelayNs);  // computing: not exposed
    world.ledger().Clear();
    const int64_t begun_ns = FlightClock();
    moved.ToLocal();
    const int64_t ended_ns = FlightClock();
    const Ledger::Exposed exposed = world.ledger().exposed();
    EXPECT_GE(exposed.waiting_seconds * 1e9, late_until_ns - late_from_ns - 1);
    EXPECT_LE(exposed.seconds() * 1e9, ended_ns - begun_ns + 1);
    EXPECT_GE(exposed.moving_seconds, 0);
    if (GetParam().name != "alone") return;  // later operations may wait for the peer again
    EXPECT_LE(exposed.moving_seconds * 1e9, ended_ns - late_until_ns + 1);
  });
}

// What has ended before it is read was hidden, however late a peer was.
TEST_P(ExposedTimeTest, WhatHasEndedIsNotExposed) {
  RunRanks(2, [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("dp=2"));
    const DTensor x = Addend(context);
    for (const Lane lane : {Lane::kGrad, Lane::kParam}) context->Group({0}, lane);
    if (world.rank() == 1) PassTime(kDelayNs);
    const DTensor moved = GetParam().issue(x);
    while (!moved.impl()->pending()->Test()) std::this_thread::yield();
    world.ledger().Clear();
    moved.ToLocal();
    EXPECT_EQ(world.ledger().exposed(), Ledger::Exposed());
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, ExposedTimeTest, testing::ValuesIn(Ways()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace weft
