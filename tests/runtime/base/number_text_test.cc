#include "runtime/base/number_text.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(NumberTextTest, IsTheShortestThatReadsBack) {
  using Limits = std::numeric_limits<double>;
  for (const double number : {0.0, 1.0, -1.5, 0.1, 1.0 / 3, 10000001.0, 0x1p53, 0x1.fffffffffffffp-3, 1e22,
                              Limits::max(), Limits::min(), Limits::denorm_min(), std::nextafter(1.0, 2.0)}) {
    double read = -2;
    EXPECT_TRUE(absl::SimpleAtod(NumberText(number), &read)) << NumberText(number);
    EXPECT_EQ(read, number);
  }
  EXPECT_EQ(NumberText(0.1), "0.1");
  EXPECT_EQ(NumberText(2), "2");
  EXPECT_EQ(NumberText(10000001), "10000001");
}

TEST(NumberTextTest, JoinsSeveral) {
  EXPECT_EQ(JoinNumbers({}, ","), "");
  EXPECT_EQ(JoinNumbers({0.5}, ","), "0.5");
  EXPECT_EQ(JoinNumbers({10000002, 0.25, 3}, " "), "10000002 0.25 3");
}

}  // namespace
}  // namespace weft
