// A step's record behind a collective that NCCL has given up: on emulated GPUs, over a fake NCCL.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <memory>

#include "dtensor/dtensor.h"
#include "dtensor/functions.h"
#include "parallel/step_metrics.h"
#include "tests/message_of.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

TEST(CutOffTest, AStepsRecordDoesNotTellIt) {
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier both(2);
  const auto body = [&](World& world) {
    const auto context = Bind(world, DeviceMesh({{"dp", 2}}));
    StepMetricsReduction records(*context);
    const auto group = world.NewGroup("grad", {0, 1});
    const DTensor loss = Full(context, DType::kF64, {}, 1);
    AllReduceUntilAborted(world, *fake, *group, loss.ToLocal());
    records.Begin({.step = 1, .num_tokens = 2}, {.loss = loss, .norm_squared = loss, .seconds = 1});
    records.Fetch();  // the stream waits for the record; the host does not
    both.arrive_and_wait();
    fake->SetAsyncError(world.rank(), NcclResult::kRemoteError);
    EXPECT_THAT(MessageOf([&] { records.Take(); }), testing::HasSubstr("remote process exited"));
  };
  RunNcclRanks(2, body, fake);
}

}  // namespace
}  // namespace weft
