// Training with compressed gradients that rest split, in pipelines and under a loss scale: where it gets, that its state is
// state, and that a step that overflows leaves it.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/launch/world.h"
#include "tests/parallel/compression/compressed_training.h"

namespace weft {
namespace {

constexpr const char* kMethods[] = {"bf16",         "int8",       "onebit", "topk(0.1, momentum=0.5)",
                                    "randomk(0.2)", "powersgd(2)"};

// How far training gets from one device's: of the way that the parameters have gone.
TEST(ShardedTrainingTest, TrainsNearOneDevice) {
  const TrainingOutcome begin = TrainCompressed({.place = {"", DataPlan::kDdp}, .last = 0});
  const TrainingOutcome one = TrainCompressed({.place = {"", DataPlan::kDdp}, .last = 10});
  const double way = Distance(one.parameters, begin.parameters);
  for (const auto& [method, bound] : std::vector<std::pair<std::string, double>>{
           {"none", 1e-12},
           {"topk(1)", 1e-6},
           {"bf16", 0.01},
           {"f16", 0.01},
           {"int8", 0.1},
           {"onebit", 0.9},
           {"topk(0.1)", 0.8},
           {"randomk(0.2)", 0.8},
           {"powersgd(2)", 0.8},
           {"powersgd(32, min_compression_rate=0.1)", 1e-3},
       }) {
    for (const TrainingPlace& place : TrainingPlaces()) {
      const TrainingOutcome other = TrainCompressed({.place = place, .method = method, .last = 10});
      EXPECT_EQ(other.parameters.size(), one.parameters.size());
      EXPECT_LE(Distance(other.parameters, one.parameters), bound * way)
          << method << " on " << place.ToString();
      EXPECT_LT(other.losses.back(), other.losses.front()) << method << " on " << place.ToString();
      EXPECT_EQ(other.state.empty(), method == "none");
    }
  }
}

// A method that has nothing to compress yet makes the sums that a plan without one makes, bit for bit.
TEST(ShardedTrainingTest, WhatIsNotCompressedIsTheExactSum) {
  for (const TrainingPlace& place : TrainingPlaces()) {
    const TrainingOutcome none = TrainCompressed({.place = place});
    const TrainingOutcome not_yet =
        TrainCompressed({.place = place, .method = "powersgd(2, start_step=100)"});
    EXPECT_EQ(not_yet.losses, none.losses) << place.ToString();
    EXPECT_EQ(not_yet.parameters, none.parameters) << place.ToString();
    EXPECT_EQ(not_yet.grad_bytes, none.grad_bytes) << place.ToString();
    const TrainingOutcome coarse = TrainCompressed({.place = place, .method = "bf16"});
    EXPECT_NE(coarse.parameters, none.parameters) << place.ToString();
  }
}

// A quarter of f64's bytes, of every gradient and in both sums.
TEST(ShardedTrainingTest, BytesAreThoseOfTheClosedForm) {
  for (const TrainingPlace& place : TrainingPlaces()) {
    const int64_t exact = TrainCompressed({.place = place, .last = 2}).grad_bytes;
    EXPECT_EQ(TrainCompressed({.place = place, .method = "bf16", .last = 2}).grad_bytes * 4, exact)
        << place.ToString();
  }
}

TEST(ShardedTrainingTest, ValuesDependOnNoSchedule) {
  for (const std::string method : {"int8", "topk(0.1)", "powersgd(2)"}) {
    for (const TrainingPlace& place : TrainingPlaces()) {
      const TrainingOutcome usual = TrainCompressed({.place = place, .method = method});
      for (const SchedulerChoices& scheduler :
           {SchedulerChoices{.bucket_mb = 0.01}, SchedulerChoices{.overlap = false}}) {
        const TrainingOutcome other =
            TrainCompressed({.place = place, .method = method, .scheduler = scheduler});
        const std::string text = absl::StrCat(method, " on ", place.ToString(), ": ", scheduler.ToString());
        EXPECT_EQ(other.losses, usual.losses) << text;
        EXPECT_EQ(other.parameters, usual.parameters) << text;
        EXPECT_EQ(other.state, usual.state) << text;
      }
    }
  }
}

TEST(ShardedTrainingTest, StateIsSavedAndResumed) {
  const std::string path = testing::TempDir() + "/sharded_communication.safetensors";
  for (const std::string method : kMethods) {
    for (const TrainingPlace& place : TrainingPlaces()) {
      const CompressedTraining run = {.place = place, .method = method, .dtype = DType::kF32};
      const TrainingOutcome whole = TrainCompressed(run);
      CompressedTraining before = run, after = run;
      before.last = 4;
      before.save = path;
      TrainCompressed(before);
      after.first = 5;
      after.resume = path;
      const TrainingOutcome rest = TrainCompressed(after);
      EXPECT_EQ(rest.parameters, whole.parameters) << method << " on " << place.ToString();
      EXPECT_EQ(rest.state, whole.state) << method << " on " << place.ToString();
      EXPECT_EQ(rest.state.at("communication.round"), (std::vector<double>{6}));
    }
  }
  std::remove(path.c_str());
}

TEST(ShardedTrainingTest, OtherPlansKeepWhatIsYetToBeSent) {
  const std::string path = testing::TempDir() + "/sharded_communication_place.safetensors";
  std::vector<TrainingPlace> places = TrainingPlaces();
  places.push_back({"dp=2", DataPlan::kDdp});
  places.push_back({"replica=3,shard=2", DataPlan::kHsdp});
  for (const std::string method : {"topk(0.1)", "int8"}) {
    for (const TrainingPlace& from :
         {TrainingPlace{"dp=4", DataPlan::kFsdp}, TrainingPlace{"replica=2,shard=2", DataPlan::kHsdp},
          TrainingPlace{"pp=2,dp=2", DataPlan::kFsdp}}) {
      const TrainingOutcome saved =
          TrainCompressed({.place = from, .method = method, .last = 4, .save = path});
      for (const TrainingPlace& to : places) {
        const std::string text = absl::StrCat(method, " from ", from.ToString(), " to ", to.ToString());
        const TrainingOutcome loaded =
            TrainCompressed({.place = to, .method = method, .first = 5, .last = 4, .resume = path});
        EXPECT_EQ(loaded.parameters, saved.parameters) << text;
        double largest = 0;
        for (const auto& [parameter, values] : saved.parameters) {
          const std::vector<double> before = Unsent(saved, parameter, values.size());
          const std::vector<double> after = Unsent(loaded, parameter, values.size());
          for (size_t i = 0; i < values.size(); ++i) {
            ASSERT_NEAR(after[i], before[i], 1e-15) << text << ": " << parameter;
            largest = std::max(largest, std::abs(before[i]));
          }
        }
        EXPECT_GT(largest, 1e-6) << text;
        EXPECT_EQ(loaded.state.at("communication.round"), (std::vector<double>{4})) << text;
        const TrainingOutcome on =
            TrainCompressed({.place = to, .method = method, .first = 5, .last = 8, .resume = path});
        EXPECT_LT(on.losses.back(), saved.losses.front()) << text;
      }
    }
  }
  std::remove(path.c_str());
}

// In f32 a scale that is a power of two, and grows, changes no bit of what is trained or kept.
TEST(ShardedTrainingTest, ALossScaleIsNotSeen) {
  std::vector<TrainingPlace> places = TrainingPlaces();
  places.push_back({"dp=2", DataPlan::kDdp});
  for (const std::string method : kMethods) {
    for (const TrainingPlace& place : places) {
      const TrainingOutcome plain = TrainCompressed({.place = place, .method = method, .dtype = DType::kF32});
      const TrainingOutcome scaled =
          TrainCompressed({.place = place, .method = method, .dtype = DType::kF32, .loss_scale = 1024});
      EXPECT_EQ(scaled.parameters, plain.parameters) << method << " on " << place.ToString();
      EXPECT_EQ(scaled.state, plain.state) << method << " on " << place.ToString();
    }
  }
}

// An overflow on one rank: the step is skipped everywhere, what is kept is as it was before, and training goes on.
TEST(ShardedTrainingTest, AnOverflowLeavesWhatIsKept) {
  for (const std::string method : kMethods) {
    for (const TrainingPlace& place :
         {TrainingPlace{"dp=2", DataPlan::kDdp}, TrainingPlace{"dp=3", DataPlan::kFsdp},
          TrainingPlace{"dp=2", DataPlan::kZero2}, TrainingPlace{"replica=2,shard=2", DataPlan::kHsdp}}) {
      const std::string text = absl::StrCat(method, " on ", place.ToString());
      const TrainingOutcome outcome = TrainCompressed({.place = place,
                                                       .method = method,
                                                       .dtype = DType::kF32,
                                                       .loss_scale = 65536,
                                                       .overflow_step = 3,
                                                       .microbatches = 2});
      EXPECT_EQ(outcome.updated, (std::vector<bool>{true, true, false, true, true, true})) << text;
      for (const auto& [name, values] : outcome.states[2]) {
        if (name == "communication.round") continue;
        EXPECT_EQ(values, outcome.states[1].at(name)) << text << ": " << name;
      }
      EXPECT_NE(outcome.states[3], outcome.states[2]) << text;
      for (const auto& [name, values] : outcome.state) {
        for (const double value : values) ASSERT_TRUE(std::isfinite(value)) << text << ": " << name;
      }
      for (const double loss : outcome.losses) EXPECT_TRUE(std::isfinite(loss)) << text;
    }
  }
}

// A world that counts the groups that are made.
class CountingWorld final : public World {
 public:
  explicit CountingWorld(World& inner)
      : World(inner.rank(), inner.size(), /*num_threads=*/1, inner.allocator(), inner.tracer()),
        inner_(inner) {}

  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    ++num_groups_;
    return inner_.NewGroup(name, ranks);
  }
  int num_groups() const { return num_groups_; }

 private:
  World& inner_;
  int num_groups_ = 0;
};

// Parallelize makes the groups of all sums, also where the axis that splits has one rank: then replicas make the first sum.
TEST(ShardedTrainingTest, NoGroupIsMadeWithinAStep) {
  std::vector<TrainingPlace> places = TrainingPlaces();
  places.push_back({"replica=2,shard=1", DataPlan::kHsdp});
  places.push_back({"replica=1,shard=2", DataPlan::kHsdp});
  for (const TrainingPlace& place : places) {
    const auto made = [&](const std::string& method) {
      std::vector<int> made_by_rank(DeviceMesh::Parse(place.mesh).num_ranks());
      RunRanks(static_cast<int>(made_by_rank.size()), [&](World& world) {
        CountingWorld counting(world);
        CompressedTrainingOnRank training({.place = place, .method = method}, counting);
        const int before = counting.num_groups();
        for (const int64_t step : {1, 2}) training.Step(step);
        made_by_rank[world.rank()] = counting.num_groups() - before;
      });
      return made_by_rank;
    };
    EXPECT_EQ(made("int8"), made("none")) << place.ToString();
  }
}

}  // namespace
}  // namespace weft
