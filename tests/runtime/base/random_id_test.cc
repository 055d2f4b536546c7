#include "runtime/base/random_id.h"

#include "gmock/gmock.h"

namespace weft {
namespace {

TEST(RandomIdTest, Is32DigitsThatNobodyElseHas) {
  EXPECT_THAT(RandomId(), testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(RandomId().size(), 32u);
  EXPECT_NE(RandomId(), RandomId());
}

}  // namespace
}  // namespace weft
