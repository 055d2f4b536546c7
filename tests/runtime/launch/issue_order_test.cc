// The switch that compares in which order ranks issue their collectives.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr int kBuckets = 4;

WorldOptions Checked(bool check = true) {
  WorldOptions options;
  options.threads_per_rank = 1;
  options.check_issue_order = check;
  return options;
}

void NameBuckets(World& world) {
  for (int i = 0; i < kBuckets; ++i) {
    // Ranks number them as they like.
    world.flight_recorder().NamePath(10 * (world.rank() + 1) + i, absl::StrCat("gradient bucket ", i));
  }
}

// A step: buckets of one size, in `order`, on a worker.
void Reduce(World& world, Communicator& group, Worker& worker, const std::vector<int>& order) {
  std::vector<Tensor> buckets;
  std::vector<Work> works;
  for (const int bucket : order) {
    const Tensor tensor = Tensor::Empty(world.allocator(), DType::kF32, {12});
    std::fill_n(tensor.data<float>(), 12, 1.0f);
    buckets.push_back(tensor);
    works.push_back(group.AllReduce(
        tensor, tensor, ReduceOp::kSum,
        {.async = true, .tag = {.path_id = 10 * (world.rank() + 1) + bucket}, .worker = &worker}));
  }
  Work::WaitInOrder(works);
}

std::string MessageOfSwap(int num_ranks, int swapped_rank, int swapped_step, bool check) {
  return MessageOf([&] {
    RunRanks(
        num_ranks,
        [&](World& world) {
          NameBuckets(world);
          std::vector<int> ranks(world.size());
          for (int rank = 0; rank < world.size(); ++rank) ranks[rank] = rank;
          const auto group = world.NewGroup("dp", ranks);
          const std::shared_ptr<Worker> worker = world.StartWorker();
          for (int step = 1; step <= 3; ++step) {
            const bool swaps = world.rank() == swapped_rank && step == swapped_step;
            Reduce(world, *group, *worker,
                   swaps ? std::vector<int>{0, 2, 1, 3} : std::vector<int>{0, 1, 2, 3});
            group->Barrier();
            world.CompareIssueOrder();
          }
        },
        Checked(check));
  });
}

TEST(IssueOrderTest, ASwappedBucketIsNamedWithItsRankAndPosition) {
  for (const int num_ranks : {2, 3, 4}) {
    for (int rank = 1; rank < num_ranks; ++rank) {
      const std::string message = MessageOfSwap(num_ranks, rank, /*swapped_step=*/2, /*check=*/true);
      EXPECT_THAT(
          message,
          HasSubstr(absl::StrCat(
              "check_issue_order, comparison 2: rank ", rank,
              " issued all_reduce(f32, sum, count 12) on axis dp (gradient bucket 2) as collective 2 of "
              "those "
              "that it shares with rank 0, which issued all_reduce(f32, sum, count 12) on axis dp (gradient "
              "bucket 1): every rank must issue its collectives in the same order")));
    }
  }
}

TEST(IssueOrderTest, WithoutTheSwitchNothingIsCompared) {
  EXPECT_EQ(MessageOfSwap(2, /*swapped_rank=*/1, /*swapped_step=*/2, /*check=*/false), "no error");
}

// Ranks of one order are of one, whatever groups they have beside.
TEST(IssueOrderTest, RanksMayHaveGroupsThatOthersHaveNot) {
  RunRanks(
      4,
      [](World& world) {
        const int me = world.rank();
        const auto dp = world.NewGroup("dp", me % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3});
        const auto tp = world.NewGroup("tp", me < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
        const auto all = world.NewGroup("all", {0, 1, 2, 3});
        for (int step = 0; step < 3; ++step) {
          for (int i = 0; i <= me % 2; ++i) dp->Barrier();  // twice on odd ranks
          tp->Barrier();
          all->Barrier();
          world.CompareIssueOrder();
        }
      },
      Checked());
}

using Entries = std::vector<IssueLog::Entry>;

TEST(IssueLogTest, HashesSeeTheOrderOfWhatIsShared) {
  IssueLog a, b;
  const IssueLog::Entry x = {"dp#0", {0, 1}, "x"}, y = {"grad#0", {0, 1}, "x"}, z = {"tp#0", {0, 2}, "z"};
  for (const auto& entry : {x, y, z}) a.Add(entry);
  for (const auto& entry : {z, y, x}) b.Add(entry);
  EXPECT_NE(a.HashesByPeer(3)[1], b.HashesByPeer(3)[1]);  // the same calls on two lanes
  EXPECT_EQ(a.HashesByPeer(3)[2], b.HashesByPeer(3)[2]);
  EXPECT_EQ(IssueLog::Decode(a.Encode()), a.entries());
  EXPECT_THAT(MessageOf([] { IssueLog::Decode("{"); }), HasSubstr("not a log of issues"));
}

TEST(IssueLogTest, FewerCallsAreADifferenceToo) {
  const IssueLog::Entry x = {"dp#0", {0, 1}, "x"}, y = {"dp#0", {0, 1}, "y"};
  EXPECT_EQ(FirstDifference(std::vector<Entries>{{x, y}, {x, y}}), std::nullopt);
  EXPECT_EQ(FirstDifference(std::vector<Entries>{{x, y}, {x}}),
            "rank 1 issued nothing as collective 2 of those that it shares with rank 0, which issued y");
}

}  // namespace
}  // namespace weft
