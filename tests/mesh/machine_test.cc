#include "mesh/machine.h"

#include <limits>

#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

Machine TwoLinks() {
  return {
      .axes = {{"dp", {.alpha = 1e-5, .beta = 1.0 / 3}}, {"tp", {.alpha = 2e-6, .beta = 2e-11}}},
      .other_axes = {.alpha = 0, .beta = 0},
      .flops = 1e14,
      .bytes_per_second = 2e12,
  };
}

TEST(MachineTest, AnAxisIsFoundByItsName) {
  const Machine machine = TwoLinks();
  EXPECT_EQ(machine.Axis("tp"), (AxisCost{.alpha = 2e-6, .beta = 2e-11}));
  EXPECT_EQ(machine.Axis("pp"), (AxisCost{.alpha = 0, .beta = 0}));
  EXPECT_EQ(Machine().Axis("dp"), AxisCost());
  EXPECT_DOUBLE_EQ(machine.Axis("dp").alpha_us(), 10);
  EXPECT_DOUBLE_EQ(AxisCost().us_per_byte(), 1e-4);
}

TEST(MachineTest, ReadsBackAsTheSameBits) {
  for (const Machine& machine : {Machine(), TwoLinks()}) {
    EXPECT_EQ(Machine::FromJson(machine.ToJson()), machine) << machine;
  }
  EXPECT_EQ(Machine().ToJson(),
            R"({"axes":{},"other_axes":{"alpha":5e-06,"beta":1e-10},"flops":200000000000.0,)"
            R"("bytes_per_second":30000000000.0})");
  // What is not said keeps its default.
  EXPECT_EQ(Machine::FromJson("{}"), Machine());
  EXPECT_EQ(Machine::FromJson(R"({"axes": {"dp": {"beta": 1e-9}}, "flops": 1e12})"),
            (Machine{.axes = {{"dp", {.beta = 1e-9}}}, .flops = 1e12}));
}

TEST(MachineTest, Misuse) {
  const auto read = [](absl::string_view json) {
    return InvalidArgumentMessage([&] { Machine::FromJson(json); });
  };
  EXPECT_EQ(read("{"), "machine: not valid JSON");
  EXPECT_EQ(read("[]"), "machine: expected an object, got array");
  EXPECT_EQ(read(R"({"flop": 1})"),
            "machine: unknown key \"flop\"; expected axes, other_axes, flops, bytes_per_second");
  EXPECT_EQ(read(R"({"flops": "fast"})"), "machine, key \"flops\": expected a number, got \"fast\"");
  EXPECT_EQ(read(R"({"axes": 3})"), "machine, key \"axes\": expected an object, got 3");
  EXPECT_EQ(read(R"({"axes": {"dp": 3}})"), "machine, key \"axes.dp\": expected an object, got 3");
  EXPECT_EQ(read(R"({"axes": {"dp": {"gamma": 3}}})"),
            "machine, key \"axes.dp\": unknown key \"gamma\"; expected alpha, beta");
  EXPECT_EQ(read(R"({"other_axes": {"beta": true}})"),
            "machine, key \"other_axes.beta\": expected a number, got true");
  EXPECT_EQ(read(R"({"axes": {"dp": {"alpha": -1}}})"),
            "machine: axes.dp.alpha is -1, expected seconds of at least 0");
  EXPECT_EQ(read(R"({"flops": 1, "flops": 2})"), "machine: key \"flops\" is given twice");
  EXPECT_EQ(read(R"({"axes": {"dp": {}, "dp": {"alpha": 1}}})"), "machine: key \"dp\" is given twice");
  EXPECT_EQ(read(R"({"axes": {"dp": {"alpha": 1, "alpha": 1}}})"), "machine: key \"alpha\" is given twice");
  EXPECT_EQ(read(R"({"flops": 0})"), "machine: flops is 0, expected a number above 0");
  const Machine endless = {.bytes_per_second = std::numeric_limits<double>::infinity()};
  EXPECT_EQ(InvalidArgumentMessage([&] { endless.Check(); }),
            "machine: bytes_per_second is inf, expected a number above 0");
}

}  // namespace
}  // namespace weft
