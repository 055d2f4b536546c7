// Models that are cut into stages, run by schedules: the loss, the norm and every gradient are those of one device, for
// every schedule beside every other parallelism, with dropout.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "parallel/styles.h"
#include "tests/parallel/pipeline/pipeline_cases.h"

namespace weft {
namespace {

constexpr const char* kSchedules[] = {"1f1b",      "gpipe",  "interleaved",    "looped_bfs",
                                      "zb_h1",     "zb_h2",  "interleaved_zb", "zbv",
                                      "dualpipev", "v_half", "v_min"};

class ExecutorTest : public testing::TestWithParam<const char*> {};

void ExpectOneDevice(const PipelineCase& test) {
  EXPECT_EQ(absl::StrJoin(DifferencesFromOneDevice(test), "\n"), "") << test.ToString();
}

// Every parallelism beside the stages of mesh "pp=...", with an embedding of its own and a tied one, and rows per microbatch that
// the ranks divide, and that they do not: some have none.
void ExpectOneDeviceBesideEach(const std::string& schedule, const std::string& stages,
                               const std::vector<int64_t>& even, const std::vector<int64_t>& uneven) {
  struct Beside {
    const char* axes;
    bool fully_sharded = false;
    bool sequence_parallel = false;
  };
  for (const Beside& beside :
       {Beside{""}, Beside{", dp=2"}, Beside{", dp=2", true}, Beside{", tp=2"}, Beside{", tp=2", false, true},
        Beside{", dp=2, tp=2"}, Beside{", dp=2, tp=2", true, true}}) {
    for (const std::vector<int64_t>& rows : {even, uneven}) {
      for (const bool tied_head : {false, true}) {
        for (const int whole_stages : {0, 1, 3}) {
          const bool is_pair_too_many = whole_stages == 1 && schedule == "dualpipev";
          if (is_pair_too_many || (whole_stages != 3 && !beside.fully_sharded)) continue;
          ExpectOneDevice({schedule, stages + beside.axes, beside.fully_sharded, beside.sequence_parallel,
                           tied_head, /*declares_tie=*/false, rows, whole_stages});
        }
      }
    }
  }
}

TEST_P(ExecutorTest, OnTwoRanksAndWhatStandsBesideThem) {
  ExpectOneDeviceBesideEach(GetParam(), "pp=2", {2, 2, 2, 2}, {3, 1, 2, 3});
}

TEST_P(ExecutorTest, OnFourRanksAndWhatStandsBesideThem) {
  ExpectOneDeviceBesideEach(GetParam(), "pp=4", std::vector<int64_t>(8, 2), {1, 2, 1, 1, 3, 1, 1, 2});
}

TEST_P(ExecutorTest, WithATieThatIsDeclared) {
  ExpectOneDevice({.schedule = GetParam(), .mesh = "pp=2", .tied_head = true, .declares_tie = true});
  ExpectOneDevice({.schedule = GetParam(),
                   .mesh = "pp=2, dp=2",
                   .fully_sharded = true,
                   .tied_head = true,
                   .declares_tie = true,
                   .rows = {3, 1, 2, 3}});
}

// The other plans of data parallelism: optimizer state, and gradients, that replicas split, and replicas of ranks that share units.
TEST_P(ExecutorTest, WithEachPlanOfDataParallelism) {
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>(4, 2), std::vector<int64_t>{3, 1, 2, 3}}) {
    for (const bool tied_head : {false, true}) {
      for (const Style& data :
           {DataParallel("dp", {.shard_state = true}), DataParallel("dp", {.shard_gradient = true})}) {
        ExpectOneDevice({.schedule = GetParam(),
                         .mesh = "pp=2, dp=2",
                         .tied_head = tied_head,
                         .rows = rows,
                         .data = data});
      }
      ExpectOneDevice(
          {.schedule = GetParam(), .mesh = "pp=2, replica=2, shard=2", .tied_head = tied_head, .rows = rows});
    }
  }
}

// One microbatch alone: the head's term of the table's gradient is one that the tie has turned, and no sum of several.
TEST(ExecutorOfOneMicrobatchTest, WithATieThatIsDeclared) {
  for (const char* schedule : {"gpipe", "1f1b", "zb_h1", "interleaved", "zbv"}) {
    ExpectOneDevice(
        {.schedule = schedule, .mesh = "pp=2", .tied_head = true, .declares_tie = true, .rows = {3}});
  }
}

// Stages that compute their blocks again: whole, in groups that the cut divides, and but for some ops.
TEST_P(ExecutorTest, WithRecomputation) {
  for (const Style& recompute :
       {Recompute(), Recompute({.every = 2}), Recompute({.keep = {"linear", "attention"}})}) {
    ExpectOneDevice({.schedule = GetParam(), .mesh = "pp=2", .recompute = recompute});
    ExpectOneDevice({.schedule = GetParam(),
                     .mesh = "pp=2, dp=2",
                     .fully_sharded = true,
                     .tied_head = true,
                     .rows = {3, 1, 2, 3},
                     .recompute = recompute});
    ExpectOneDevice(
        {.schedule = GetParam(), .mesh = "pp=2, tp=2", .sequence_parallel = true, .recompute = recompute});
  }
}

// Gradients are added to those that there are, of what several stages have, too.
TEST_P(ExecutorTest, GradientsOfSeveralRunsAddUp) {
  for (const char* mesh : {"pp=2", "pp=2, dp=2"}) {
    ExpectOneDevice({.schedule = GetParam(), .mesh = mesh, .tied_head = true, .runs = 2});
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ExecutorTest, testing::ValuesIn(kSchedules),
                         [](const auto& info) { return std::string(info.param); });

// Hands all on to another.
class Wrapped : public StageData {
 public:
  explicit Wrapped(std::shared_ptr<StageData> data) : data_(std::move(data)) {}
  void Unshard(int stage) override { data_->Unshard(stage); }
  void Reshard(int stage) noexcept override { data_->Reshard(stage); }
  void Begin() override { data_->Begin(); }
  void ReduceGradients(int stage) override { data_->ReduceGradients(stage); }
  void FinishGradients() override { data_->FinishGradients(); }
  void Abandon() noexcept override { data_->Abandon(); }

 private:
  std::shared_ptr<StageData> data_;
};

// What the comparison sees.
TEST(ExecutorMutants, EachIsSeen) {
  const PipelineCase test = {
      .schedule = "zb_h1", .mesh = "pp=2, dp=2", .fully_sharded = true, .tied_head = true};
  ASSERT_EQ(absl::StrJoin(DifferencesFromOneDevice(test), "\n"), "");
  const auto seen = [&](const PipelineMistake& mistake) {
    return !DifferencesFromOneDevice(test, mistake).empty();
  };
  const auto on_last_stage = [](World& world) { return world.rank() >= 2; };

  EXPECT_TRUE(seen({.in_parts = [&](World& world, std::vector<Microbatch>& parts) {
    if (on_last_stage(world)) std::swap(parts[0].targets, parts[1].targets);
  }})) << "targets of two microbatches swapped";
  EXPECT_TRUE(seen({.in_parts = [](World&, std::vector<Microbatch>& parts) {
    for (Microbatch& part : parts) part.batch_offset = 0;
  }})) << "every microbatch at the begin of the batch";
  EXPECT_TRUE(seen({.in_parts = [&](World& world, std::vector<Microbatch>& parts) {
    if (on_last_stage(world)) parts[2].batch_offset = 0;
  }})) << "masks of another microbatch on one stage";

  class Unfinished : public Wrapped {
   public:
    using Wrapped::Wrapped;
    void FinishGradients() override {}
  };
  EXPECT_TRUE(seen({.in_data = [](const auto& data) { return std::make_shared<Unfinished>(data); }}))
      << "a tied gradient of each stage's own";
  class Unreduced : public Wrapped {
   public:
    using Wrapped::Wrapped;
    void ReduceGradients(int stage) override {
      if (stage > 0) Wrapped::ReduceGradients(stage);
    }
  };
  EXPECT_TRUE(seen({.in_data = [](const auto& data) { return std::make_shared<Unreduced>(data); }}))
      << "a stage whose gradients are not reduced";
}

}  // namespace
}  // namespace weft
