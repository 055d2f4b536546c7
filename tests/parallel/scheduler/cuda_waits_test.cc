// Each wait of the rank's stream, left out by itself in training steps on emulated GPUs, is seen: cuda_scheduler_test tries
// some of them.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/parallel/scheduler/cuda_training.h"

namespace weft {
namespace {

class CudaWaitsTest : public testing::TestWithParam<CudaCase> {};

TEST_P(CudaWaitsTest, EachOfTheRanksStreamLeftOutIsSeen) {
  const std::vector<std::string> unseen = UnseenWaitsOfRank(GetParam(), /*stride=*/1);
  // The last wait for the lane of gathers is for the root's unit of a step that never comes.
  const bool is_last = unseen.size() == 1 && absl::StartsWith(unseen[0], "wait 25 of 26 for stream ");
  EXPECT_TRUE(unseen.empty() || (GetParam().gathers_ahead && is_last)) << absl::StrJoin(unseen, "\n");
}

INSTANTIATE_TEST_SUITE_P(Plans, CudaWaitsTest, testing::ValuesIn(CudaCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace weft
