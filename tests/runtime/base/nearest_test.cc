#include "runtime/base/nearest.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

TEST(NearestTest, EditDistance) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("mehs", "mesh"), 1);  // neighbours swapped
  EXPECT_EQ(EditDistance("blocks.0.mpl", "blocks.0.mlp"), 1);
}

TEST(NearestTest, FirstOfTheNearest) {
  const std::vector<std::string> names = {"steps", "seed", "step"};
  EXPECT_EQ(NearestName("stepp", names), "steps");
  EXPECT_EQ(NearestName("sed", names), "seed");
  EXPECT_THAT([] { NearestName("x", {}); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("no names to compare 'x' with")));
}

}  // namespace
}  // namespace weft
