// How long operations take: the ledger's seconds, and the time that the rank's thread is held up.

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/dtype.h"
#include "tests/runtime/comm/conformance.h"

namespace weft {
namespace {

Tensor Filled(World& world, int64_t count, double value) {
  return MakeTensor<double>(world, count, [&](double* values) { std::fill_n(values, count, value); });
}

// Operations of one group follow each other, however early they were issued.
TEST_P(CommConformance, SecondsOfAGroupAreNoMoreThanTheTimeThatPassed) {
  Run(2, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    const auto gate = world.NewGroup("gate", AllRanks(world));
    const Tensor tensor = Filled(world, 1000, 0);
    const int64_t begun_ns = FlightClock();
    if (world.rank() == 1) gate->Barrier();
    for (int i = 0; i < 20; ++i) group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
    if (world.rank() == 0) gate->Barrier();
    group->Barrier();
    const double passed = static_cast<double>(FlightClock() - begun_ns) * 1e-9;
    double seconds = 0;
    for (const LedgerEntry& entry : world.ledger().entries()) {
      seconds += entry.group == "dp" ? entry.seconds : 0;
    }
    Expect(seconds > 0 && seconds <= passed, "the ledger holds ", seconds, " s of the ", passed,
           " s that have passed");
  });
}

// The sum over the ranks.
int64_t Sum(World& world, Communicator& group, int64_t mine) {
  const Tensor sum = MakeTensor<int64_t>(world, 1, [&](int64_t* value) { *value = mine; });
  group.AllReduce(sum, sum, ReduceOp::kSum);
  return OnHost(sum).data<int64_t>()[0];
}

double Seconds(int64_t from_ns, int64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-9; }

constexpr double kRounding = 1e-6;  // of a device's times

// Makes `call`, which writes `output`, rank 1 by `late` behind rank 0, and checks what both are told of it. Returns whether a
// device's rank 0 is told of most of the time for which its peer was late: whoever has the core may delay its stream. On the CPU
// the times are those of the call itself, and the bounds hold however ranks are scheduled.
bool CheckLateCall(World& world, Communicator& group, const std::function<void()>& call, const Tensor& output,
                   std::chrono::milliseconds late, const std::string& what) {
  group.Barrier();
  world.ledger().Clear();
  if (world.rank() == 1) std::this_thread::sleep_for(late);
  const int64_t entered_ns = FlightClock();
  call();
  OnHost(output);  // a device has come to it
  const int64_t ended_ns = FlightClock();
  const int64_t issued_ns = world.flight_recorder().Snapshot().entries.back().issued_ns;
  const Ledger::Exposed exposed = world.ledger().exposed();
  const int64_t came_ns = Sum(world, group, world.rank() == 1 ? entered_ns : 0);

  const double elapsed = Seconds(entered_ns, ended_ns), late_by = Seconds(issued_ns, came_ns);
  const std::string told =
      absl::StrCat(what, ": waiting ", exposed.waiting_seconds, " s, moving ", exposed.moving_seconds,
                   " s of ", elapsed, " s, and the peer was late by ", late_by, " s");
  Expect(exposed.waiting_seconds >= 0 && exposed.moving_seconds >= 0, told);
  Expect(exposed.seconds() <= elapsed + kRounding, told);
  if (!OnCpu(world)) Expect(exposed.waiting_seconds == 0, told);
  if (OnCpu(world) && world.rank() == 0) {
    Expect(exposed.waiting_seconds >= late_by - kRounding, told);
    Expect(exposed.moving_seconds <= Seconds(came_ns, ended_ns) + kRounding, told);
  }
  const bool is_enough = OnCpu(world) || world.rank() == 1 || exposed.seconds() >= 0.5 * late_by;
  return Sum(world, group, is_enough ? 1 : 0) == world.size();
}

// The time that a blocking call holds up its thread is exposed: waiting until the last member has entered, then moving. Of
// a device's stream it is the sum.
TEST_P(CommConformance, ABlockingCallIsExposedAsWaitingAndMoving) {
  Run(2, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    const Tensor one = Filled(world, 1000, 1), other = Filled(world, 10, 2), all = Filled(world, 2000, 0);
    const auto check = [&](const std::string& what, const Tensor& output, const std::function<void()>& call) {
      std::chrono::milliseconds late(100);
      while (!CheckLateCall(world, *group, call, output, late, what)) {
        Expect(late < std::chrono::seconds(6), what, ": less than half of the time is exposed");
        late *= 4;
      }
    };
    check("all-reduce", one, [&] { group->AllReduce(one, one, ReduceOp::kSum); });
    check("list", one, [&] { group->AllReduceEach({{one, one, {}}, {other, other, {}}}, ReduceOp::kSum); });
    check("gather", all, [&] { group->AllGather(one, all, {1000, 1000}); });
  });
}

}  // namespace
}  // namespace weft
