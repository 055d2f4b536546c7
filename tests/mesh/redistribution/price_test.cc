#include "mesh/redistribution/price.h"

#include "gtest/gtest.h"

namespace weft {
namespace {

RedistributionPrice PriceOf(absl::string_view from, absl::string_view to, const Shape& shape) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2,tp=4");
  const CostModel cost_model(
      mesh, {.axes = {{"dp", {.alpha = 3e-6, .beta = 0.5e-6}}, {"tp", {.alpha = 10e-6, .beta = 0.25e-6}}}});
  const Layout source = Layout::Parse(from, mesh);
  const Layout target = Layout::Parse(to, mesh);
  const RedistributionPrice price =
      PriceRedistribution(source, target, {DType::kF32, shape}, mesh, cost_model);
  EXPECT_EQ(price.microseconds,
            RedistributionMicroseconds(source, target, {DType::kF32, shape}, mesh, cost_model));
  return price;
}

// By the closed forms: a step takes 5 us, alpha for each of its log2(n) rounds (an all-reduce: twice as many)
// and beta for each byte that a rank receives; an all-gather of S bytes moves (n-1) S in each group.
TEST(RedistributionPriceTest, TimesBytesAndSteps) {
  EXPECT_EQ(PriceOf("[dp, -]", "[dp, -]", {8, 2}), RedistributionPrice());
  EXPECT_EQ(PriceOf("[-, -]", "[tp, -]", {8, 2}), (RedistributionPrice{0, 0, "slice(tp)"}));
  EXPECT_EQ(PriceOf("[dp, -]", "[-, -]", {8, 2}),
            (RedistributionPrice{5 + 3 + 0.5 * 32, 4 * 64, "all_gather(dp)"}));
  EXPECT_EQ(PriceOf("[-, -] P{tp}", "[-, -]", {8, 2}),
            (RedistributionPrice{5 + 4 * 10 + 0.25 * 96, 2 * 2 * 3 * 64, "all_reduce(tp)"}));
  EXPECT_EQ(PriceOf("[-, -] P{tp}", "[dp, tp]", {8, 4}),
            (RedistributionPrice{5 + 2 * 10 + 0.25 * 48, 2 * 3 * 64, "slice(dp), reduce_scatter(tp)"}));
  EXPECT_EQ(PriceOf("[dp, -]", "[-, -]", {0, 2}).num_bytes, 0);
}

}  // namespace
}  // namespace weft
