// Planted wrong rules, as in planted_rules_test, of what outputs are made of.

#include "gtest/gtest.h"
#include "ops/op/kernel.h"
#include "tests/ops/toy_ops.h"
#include "tests/tools/rules/planted_rules.h"

namespace weft {
namespace {

// A split of what one output is not made of makes it a piece all the same.
constinit const Op<> kGradientMadeOfAll = {{
    .name = "gradient_made_of_all",
    .operands = "x dy",
    .outputs = "dw db",
    .infer = InferOf<kToyLinearGrad>,
    .rule = Fixed<"m k, m n -> k n, n">,
    .linear = "{dy}",
    .samples = SamplesOf<kToyLinearGrad>,
}};

// The bias is said not to be in the output, so it is added once more by every piece.
constinit const Op<> kBiasNotMadeOf = {{
    .name = "bias_not_made_of",
    .operands = "x w b",
    .outputs = "y r",
    .infer = InferOf<kToyReluLinear>,
    .rule = Fixed<"m k, k n, n -> m n {0 1}, m k {0}">,
    .linear = "{w b}",
    .samples = SamplesOf<kToyReluLinear>,
}};

const RegisterKernel kRegistered[] = {
    {kGradientMadeOfAll, DeviceType::kCpu, KernelOf<kToyLinearGrad>},
    {kBiasNotMadeOf, DeviceType::kCpu, KernelOf<kToyReluLinear>},
};

TEST(PlantedOutputsTest, AreCaught) {
  ExpectCaught({&kGradientMadeOfAll, "one axis", "on a=2: [-, a], [-, -] -> [a, -], [-] P{a}", "output 1"});
  ExpectCaught(
      {&kBiasNotMadeOf, "one axis", "on a=2: [-, a], [a, -], [-] -> [-, -] P{a}, [-, a]", "output 0"});
}

}  // namespace
}  // namespace weft
