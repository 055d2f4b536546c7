// NCCL connects the two ends of a message at the first one: in a group of two when it is made, in a larger one by the call.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/tensor/tensor.h"
#include "tests/message_of.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(FirstMessageTest, OneWhoseOtherEndHasEndedIsToldWhereItWouldConnect) {
  RunNcclRanks(3, [](World& world) {
    const auto group = world.NewGroup("pp", {0, 1, 2});
    if (world.rank() != 0) return;
    const Tensor tensor = Tensor::FromValues<float>({1}, {0}, world.allocator());
    EXPECT_THAT(MessageOf([&] { group->Recv(tensor, 2, {.async = true}); }),
                AllOf(HasSubstr("group 'pp'"), HasSubstr("waits for world ranks [2]"),
                      HasSubstr("whose rank function has returned")));
  });
}

// The ends of two pairs come to their first messages in opposite orders.
TEST(FirstMessageTest, PairsComeToTheirsInAnyOrder) {
  RunNcclRanks(2, [](World& world) {
    const auto first = world.NewGroup("first", {0, 1});
    const auto second = world.NewGroup("second", {0, 1});
    const Tensor tensor = Tensor::FromValues<float>({1}, {7}, world.allocator());
    const Tensor received = Tensor::FromValues<float>({1}, {0}, world.allocator());
    const Work work = world.rank() == 0 ? first->Send(tensor, 1, {.async = true})
                                        : second->Recv(received, 0, {.async = true});
    const Work other = world.rank() == 0 ? second->Send(tensor, 1, {.async = true})
                                         : first->Recv(received, 0, {.async = true});
    work.Wait();
    other.Wait();
    EXPECT_EQ(world.rank() == 0 ? 7 : received.ToVector<float>()[0], 7);
  });
}

}  // namespace
}  // namespace weft
