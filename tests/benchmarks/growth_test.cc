#include "benchmarks/growth.h"

#include <cmath>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

std::vector<CostPoint> PowerLaw(double factor, double exponent) {
  std::vector<CostPoint> points;
  for (double size : {1.0, 2.0, 10.0, 64.0, 1e6}) points.push_back({size, factor * std::pow(size, exponent)});
  return points;
}

TEST(GrowthTest, FindsTheExponentOfAPowerLaw) {
  for (double exponent : {-0.5, 0.0, 0.1, 1.0, 2.0}) {
    for (double factor : {1e-3, 7.0, 1e5}) {
      EXPECT_NEAR(FittedExponent(PowerLaw(factor, exponent)), exponent, 1e-9);
    }
  }
}

TEST(GrowthTest, ByLeastSquares) {
  // In powers of e: (0, 0), (1, 2), (2, 1) lie around a line of slope 1/2.
  const double e = std::exp(1.0);
  EXPECT_NEAR(FittedExponent({{1, 1}, {e, e * e}, {e * e, e}}), 0.5, 1e-12);
  EXPECT_NEAR(FittedExponent({{2, 3}, {4, 9}}), std::log(3) / std::log(2), 1e-12);
}

TEST(GrowthTest, Misuse) {
  const auto message = [](const std::vector<CostPoint>& points) {
    return InvalidArgumentMessage([&] { FittedExponent(points); });
  };
  EXPECT_EQ(message({}), "an exponent is fitted to at least two sizes, got 0 points");
  EXPECT_EQ(message({{8, 1}, {8, 2}}), "an exponent is fitted to at least two sizes, got 2 points");
  EXPECT_EQ(message({{8, 1}, {16, 0}}), "an exponent is fitted to positive sizes and costs, got 0 us at 16");
}

}  // namespace
}  // namespace weft
