// Each wait of the rank's stream, left out by itself in training steps on emulated GPUs, is seen: cuda_scheduler_test tries
// some of them.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/scheduler/cuda_training.h"

namespace weft {
namespace {

class CudaWaitsTest : public testing::TestWithParam<CudaCase> {};

TEST_P(CudaWaitsTest, EachOfTheRanksStreamLeftOutIsSeen) {
  EXPECT_THAT(UnseenWaitsOfRank(GetParam(), /*stride=*/1), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Plans, CudaWaitsTest, testing::ValuesIn(CudaCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace weft
