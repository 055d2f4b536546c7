// Lists with a mistake, run as they are: reductions per microbatch, which no equality of gradients shows; weight gradients ahead
// of what they are made of, which the executor sees itself; activations of two microbatches swapped, which gradients show.

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/lowering.h"
#include "parallel/pipeline/schedule_csv.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/pipeline/products.h"
#include "tests/parallel/training_run.h"

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

TrainingResult OneDevice(int num_microbatches) {
  TrainingResult result;
  RunRanks(1, [&](World& world) {
    Products model(4);
    const auto context = Bind(world, DeviceMesh());
    Materialize(model, context, {.dtype = DType::kF64});
    double loss = 0;
    for (const Microbatch& part : ProductParts(context, num_microbatches)) {
      const DTensor of_part = model.LossOf({model(part.inputs[0])}, part.targets).sum;
      Backward(of_part);
      loss += of_part.Item();
    }
    FullTensors gradients;
    for (const Parameter* parameter : model.AllParameters()) {
      gradients[parameter->path()] = parameter->grad().ToLocal().ToVector<double>();
    }
    result = OneStep(loss, gradients);
  });
  return result;
}

TrainingResult InStages(const PipelineSchedule& schedule) {
  double loss = 0;
  FullTensors gradients;
  std::mutex mutex;
  RunRanks(2, [&](World& world) {
    Products model(4);
    Parallelize(model, world, DeviceMesh::Parse("pp=2"), StagedPlan(), {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, schedule, {.rendezvous = true});
    const double of_run =
        pipeline.Run(ProductParts(model.context(), schedule.num_microbatches), One(model.context())).Item();
    const std::lock_guard<std::mutex> lock(mutex);
    loss = of_run;
    for (const Parameter* parameter : model.AllParameters()) {
      gradients[parameter->path()] = parameter->grad().ToLocal().ToVector<double>();
    }
  });
  return OneStep(loss, gradients);
}

// The second stage has what was made of microbatch 1 where it computes microbatch 0, and the other way round: messages go by
// their order, and a list says what they are of.
TEST(ExecutorMutantsTest, SwappedActivationsAreSeen) {
  const PipelineSchedule schedule = ScheduleFromCsv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
      "by hand");
  PipelineSchedule swapped = schedule;
  std::swap(swapped.ranks[1][0], swapped.ranks[1][1]);
  const TrainingResult expected = OneDevice(/*num_microbatches=*/2);
  EXPECT_EQ(Differences(expected, InStages(schedule), kF64Tolerance), std::vector<std::string>());
  // The loss, the norm and every gradient, far beyond rounding.
  constexpr Tolerance kSeen = {.gradient = 1e-6, .gradient_floor = 0, .loss = 1e-6, .grad_norm = 1e-6};
  const std::vector<std::string> seen = Differences(expected, InStages(swapped), kSeen);
  EXPECT_EQ(seen.size(), 2 + expected.gradients.at(1).size()) << absl::StrJoin(seen, "\n");
}

}  // namespace
}  // namespace weft
