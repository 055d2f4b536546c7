// Lists with a mistake that no equality of gradients shows, or that the executor has to see itself: reductions per microbatch,
// weight gradients ahead of what they are made of.

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/lowering.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

using Kind = ActionKind;
using Items = std::vector<ScheduleItem>;

PipelineSchedule LoweredZbH1(int microbatches) {
  return LowerSchedule(GenerateSchedule("zb_h1", {.ranks = 2, .microbatches = microbatches}));
}

// A step of a lowered list as it is, unchecked; what each rank communicates of gradients.
std::vector<int64_t> GradientBytes(const PipelineSchedule& schedule, const Style& data) {
  std::vector<int64_t> bytes(4);
  RunRanks(4, [&](World& world) {
    Products model(4);
    const Plan plan = {{"layers.*", Pipeline("pp")}, {"layers.*", data}};
    Parallelize(model, world, DeviceMesh::Parse("pp=2, dp=2"), plan, {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, schedule, {.rendezvous = true});
    const DTensor total = Full(model.context(), DType::kF64, Shape(), 1);
    const std::vector<Microbatch> parts = ProductParts(model.context(), schedule.num_microbatches);
    pipeline.Run(parts, total);  // the first step learns the buckets
    for (const Parameter* parameter : model.AllParameters()) parameter->grad();
    world.ledger().Clear();
    pipeline.Run(parts, total);
    for (const Parameter* parameter : model.AllParameters()) parameter->grad().ToLocal();
    for (const LedgerEntry& entry : world.ledger().entries()) {
      if (entry.tag.purpose == static_cast<uint8_t>(Purpose::kGrad)) bytes[world.rank()] += entry.num_bytes;
    }
  });
  return bytes;
}

TEST(ExecutorMutantsTest, AReductionPerMicrobatchMovesMore) {
  for (const Style& data : {DataParallel("dp"), FullyShard("dp")}) {
    for (const int microbatches : {2, 6}) {
      const PipelineSchedule schedule = LoweredZbH1(microbatches);
      PipelineSchedule mutant = schedule;
      for (Items& list : mutant.ranks) {
        Items items;
        for (const ScheduleItem& item : list) {
          const PipelineAction& action = item.actions[0];
          if (action.kind == Kind::kReduceGrad) continue;
          items.push_back(item);
          if (action.kind == Kind::kWeightGradient || action.kind == Kind::kBackward) {
            items.push_back(PipelineAction{Kind::kReduceGrad, action.stage});
          }
        }
        list = std::move(items);
      }
      std::vector<int64_t> once = GradientBytes(schedule, data);
      EXPECT_GT(once[0], 0);
      EXPECT_EQ(once, GradientBytes(LoweredZbH1(4), data));
      for (int64_t& bytes : once) bytes *= microbatches;
      EXPECT_EQ(GradientBytes(mutant, data), once) << data.name << ", " << microbatches << " microbatches";
    }
  }
}

// The places of a rank's weight gradients in its list.
std::vector<size_t> WeightGradients(const Items& list) {
  std::vector<size_t> places;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].actions[0].kind == Kind::kWeightGradient) places.push_back(i);
  }
  return places;
}

std::string RunUnchecked(const PipelineSchedule& schedule) {
  return MessageOf([&] {
    RunRanks(2, [&](World& world) {
      Products model(4);
      Parallelize(model, world, DeviceMesh::Parse("pp=2"), {{"layers.*", Pipeline("pp")}},
                  {.dtype = DType::kF64});
      PipelineExecutor pipeline(model, schedule, {.rendezvous = true});
      pipeline.Run(ProductParts(model.context(), schedule.num_microbatches),
                   Full(model.context(), DType::kF64, Shape(), 1));
    });
  });
}

// W of one microbatch where the list had that of another, whose I has run; and W before its own I.
TEST(ExecutorMutantsTest, AWeightGradientAheadOfItsInputGradientIsNamed) {
  const PipelineSchedule schedule = LoweredZbH1(4);
  EXPECT_EQ(RunUnchecked(schedule), "no error");
  for (const int rank : {0, 1}) {
    const std::vector<size_t> places = WeightGradients(schedule.ranks[rank]);
    ASSERT_EQ(places.size(), 4u);
    PipelineSchedule of_another = schedule;
    std::swap(of_another.ranks[rank][places[0]], of_another.ranks[rank][places[3]]);
    EXPECT_THAT(
        RunUnchecked(of_another),
        testing::HasSubstr(absl::StrCat("pipeline: ", rank, "W3 is not where the list has what it needs")));
    PipelineSchedule before_its_own = schedule;
    Items& list = before_its_own.ranks[rank];
    const PipelineAction input_gradient = {Kind::kInputGradient, rank, 2};
    const auto found = std::find(list.begin(), list.end(), ScheduleItem(input_gradient));
    ASSERT_NE(found, list.end());
    const auto weights =
        std::find(list.begin(), list.end(), ScheduleItem(PipelineAction{Kind::kWeightGradient, rank, 2}));
    ASSERT_NE(weights, list.end());
    std::swap(*found, *weights);
    EXPECT_THAT(
        RunUnchecked(before_its_own),
        testing::HasSubstr(absl::StrCat("pipeline: ", rank, "W2 is not where the list has what it needs")));
  }
}

}  // namespace
}  // namespace weft
