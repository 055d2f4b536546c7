// How long operations take: the ledger's seconds, and the time that the rank's thread is held up.

#include <algorithm>
#include <functional>
#include <string>
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

// The time that a blocking call holds up its thread is exposed: waiting until the last member has entered, then moving. Of
// a device's stream it is the sum.
TEST_P(CommConformance, ABlockingCallIsExposedAsWaitingAndMoving) {
  Run(2, [](World& world) {
    constexpr double kRounding = 1e-6;  // of a device's times
    const auto group = world.NewGroup("dp", AllRanks(world));
    const Tensor one = Filled(world, 1000, 1), other = Filled(world, 10, 2), all = Filled(world, 2000, 0);
    const std::vector<std::function<void()>> calls = {
        [&] { group->AllReduce(one, one, ReduceOp::kSum); },
        [&] {
          group->AllReduceEach({{one, one, {}}, {other, other, {}}}, ReduceOp::kSum);
        },
        [&] {
          group->AllGather(one, all, {1000, 1000});
        }};
    for (size_t i = 0; i < calls.size(); ++i) {
      group->Barrier();
      world.ledger().Clear();
      const int64_t begun_ns = FlightClock();
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const int64_t entered_ns = FlightClock();
      calls[i]();
      OnHost(one);  // a device has come to it
      OnHost(all);
      const int64_t ended_ns = FlightClock();
      const Ledger::Exposed exposed = world.ledger().exposed();
      // When the late one came.
      const Tensor came =
          MakeTensor<int64_t>(world, 1, [&](int64_t* value) { *value = world.rank() == 1 ? entered_ns : 0; });
      group->AllReduce(came, came, ReduceOp::kSum);
      const int64_t came_ns = OnHost(came).data<int64_t>()[0];

      const auto seconds = [](int64_t from, int64_t to) { return static_cast<double>(to - from) * 1e-9; };
      const double elapsed = seconds(entered_ns, ended_ns), late = seconds(begun_ns, came_ns);
      const std::string told = absl::StrCat("call ", i, ": waiting ", exposed.waiting_seconds, " s, moving ",
                                            exposed.moving_seconds, " s of ", elapsed, " s");
      Expect(exposed.waiting_seconds >= 0 && exposed.moving_seconds >= 0, told);
      Expect(exposed.seconds() <= elapsed + kRounding, told);
      if (!OnCpu(world)) Expect(exposed.waiting_seconds == 0, told);
      if (world.rank() == 1) continue;
      // The call begins a little after the time that was read before it.
      const double of_late = OnCpu(world) ? exposed.waiting_seconds : exposed.seconds();
      Expect(of_late >= 0.5 * late, told, ", and the peer was late by ", late, " s");
      if (OnCpu(world)) Expect(exposed.moving_seconds <= seconds(came_ns, ended_ns) + kRounding, told);
    }
  });
}

}  // namespace
}  // namespace weft
