#include "runtime/comm/mpi/environment.h"

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/comm/mpi/communicator.h"
#include "tests/message_of.h"
#include "tests/runtime/comm/mpi/program.h"

namespace weft {
namespace {

TEST(MpiEnvironmentTest, KnowsItsRankAndItsMachine) {
  MpiEnvironment& environment = TestEnvironment();
  EXPECT_EQ(environment.size(), 8);
  EXPECT_EQ(environment.local_size(), 8);
  EXPECT_EQ(environment.local_rank(), environment.rank());
}

TEST(MpiEnvironmentTest, BroadcastsBytesOfAnyLength) {
  MpiEnvironment& environment = TestEnvironment();
  for (const int length : {0, 1, 100000}) {
    std::string bytes(length, static_cast<char>(environment.rank()));
    if (environment.rank() == 0) bytes = std::string(length, 'x') + '\0';
    EXPECT_EQ(environment.Broadcast(bytes), std::string(length, 'x') + '\0');
  }
}

TEST(MpiEnvironmentTest, IsOneAProcess) {
  EXPECT_EQ(MessageOf([] { MpiEnvironment another; }),
            "MPI has been initialised in this process before, and can be once");
}

TEST(MpiEnvironmentTest, RefusesHubsThatLackThisRank) {
  const int rank = TestEnvironment().rank();
  EXPECT_NE(InvalidArgumentMessage([&] { TestEnvironment().NewHub(rank); }).find("this one among them"),
            std::string::npos);
  EXPECT_NE(InvalidArgumentMessage([] { TestEnvironment().NewHub(9); }).find("of an MPI job of 8"),
            std::string::npos);
}

TEST(MpiAlone, AProcessWithoutALauncherIsAJobOfOne) {
  MpiEnvironment& environment = TestEnvironment();
  EXPECT_EQ(environment.size(), 1);
  EXPECT_EQ(environment.Broadcast("alone"), "alone");
  RunMpi(1, [](World& world) {
    const auto group = world.NewGroup("dp", {0});
    const Tensor tensor = Tensor::Empty(world.allocator(), DType::kF32, {10000});
    std::fill_n(tensor.data<float>(), 10000, 3.0f);
    const Tensor sum = Tensor::Empty(world.allocator(), DType::kF32, {10000});
    group->AllReduce(tensor, sum, ReduceOp::kSum, {.async = true}).Wait();
    EXPECT_EQ(sum.data<float>()[9999], 3);
    group->Barrier();
  });
}

}  // namespace
}  // namespace weft
