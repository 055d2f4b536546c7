// What methods keep, as state: of stages that are frozen, behind steps that have thrown, on other meshes, and in files that
// do not fit.

#include "parallel/compression/communication_state.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/compression/compressed_training.h"

namespace weft {
namespace {

using testing::HasSubstr;

using Values = std::map<std::string, std::vector<double>>;

Values WithoutRound(Values state) {
  state.erase("communication.round");
  return state;
}

// A stage that is frozen sums nothing, and its rounds count all the same: the file has one count for all stages.
TEST(CommunicationStateTest, FrozenStagesAreResumed) {
  const std::string path = testing::TempDir() + "/frozen_communication.safetensors";
  for (const std::string method : {"int8", "randomk(0.2)", "powersgd(2, start_step=4)"}) {
    for (const DataPlan data : {DataPlan::kDdp, DataPlan::kFsdp}) {
      const CompressedTraining run = {
          .place = {"pp=2,dp=2", data}, .method = method, .dtype = DType::kF32, .frozen_steps = 2};
      const std::string text = absl::StrCat(method, " on ", run.place.ToString());
      const TrainingOutcome whole = TrainCompressed(run);
      CompressedTraining before = run, after = run;
      before.last = 4;
      before.save = path;
      const TrainingOutcome saved = TrainCompressed(before);
      EXPECT_EQ(saved.state.at("communication.round"), (std::vector<double>{4})) << text;
      after.first = 5;
      after.resume = path;
      const TrainingOutcome rest = TrainCompressed(after);
      EXPECT_EQ(rest.parameters, whole.parameters) << text;
      EXPECT_EQ(rest.state, whole.state) << text;
    }
  }
  std::remove(path.c_str());
}

// Where microbatches' gradients are not added up on their rank each of them is a round.
TEST(CommunicationStateTest, RoundsAreSums) {
  const auto rounds = [](const TrainingPlace& place) {
    const TrainingOutcome outcome =
        TrainCompressed({.place = place, .method = "int8", .last = 3, .microbatches = 2});
    return outcome.state.at("communication.round")[0];
  };
  EXPECT_EQ(rounds({"dp=2", DataPlan::kDdp}), 3);
  EXPECT_EQ(rounds({"dp=2", DataPlan::kZero1}), 3);
  EXPECT_EQ(rounds({"dp=2", DataPlan::kZero2}), 6);
  EXPECT_EQ(rounds({"dp=2", DataPlan::kFsdp}), 6);
  EXPECT_EQ(rounds({"replica=2,shard=2", DataPlan::kHsdp}), 6);
  EXPECT_EQ(rounds({"pp=2,dp=2", DataPlan::kFsdp}), 3);
}

// A step that throws behind its first microbatch, which was summed; then an older state is loaded.
TEST(CommunicationStateTest, AStepThatThrowsUnderALossScaleIsForgotten) {
  const std::string path = testing::TempDir() + "/thrown_communication.safetensors";
  for (const std::string method : {"int8", "topk(0.1, momentum=0.5)", "powersgd(2)"}) {
    for (const TrainingPlace& place :
         {TrainingPlace{"dp=2", DataPlan::kZero2}, TrainingPlace{"dp=3", DataPlan::kFsdp},
          TrainingPlace{"replica=2,shard=2", DataPlan::kHsdp}}) {
      const std::string text = absl::StrCat(method, " on ", place.ToString());
      const CompressedTraining run = {
          .place = place, .method = method, .dtype = DType::kF32, .loss_scale = 1024, .microbatches = 2};
      const TrainingOutcome whole = TrainCompressed(run);
      CompressedTraining failing = run;
      failing.save = path;
      failing.save_step = 2;
      failing.failing_step = 4;
      const TrainingOutcome outcome = TrainCompressed(failing);
      // States: behind steps 1, 2, 3, and then 3 again.
      EXPECT_EQ(WithoutRound(outcome.state_of_failure), WithoutRound(outcome.states[2])) << text;
      EXPECT_EQ(outcome.states[3], whole.states[2]) << text;
      EXPECT_EQ(outcome.parameters, whole.parameters) << text;
      EXPECT_EQ(outcome.state, whole.state) << text;
    }
  }
  std::remove(path.c_str());
}

// Thirds of some parameters are not worth powersgd's while, and replicas keep nothing of them: what they have yet to send
// goes to the ranks' own residuals.
TEST(CommunicationStateTest, WhatReplicasNoLongerKeepIsNotLost) {
  const std::string path = testing::TempDir() + "/replicas_communication.safetensors";
  const std::string method = "powersgd(2, min_compression_rate=10)";
  const TrainingOutcome saved = TrainCompressed(
      {.place = {"replica=2,shard=2", DataPlan::kHsdp}, .method = method, .last = 4, .save = path});
  const TrainingOutcome loaded = TrainCompressed({.place = {"replica=2,shard=3", DataPlan::kHsdp},
                                                  .method = method,
                                                  .first = 5,
                                                  .last = 4,
                                                  .resume = path});
  int num_moved = 0;
  for (const auto& [parameter, values] : saved.parameters) {
    const std::string name = absl::StrCat("communication.", parameter, ".replicas.residual");
    if (saved.state.count(name) == 0 || loaded.state.count(name) > 0) continue;
    ++num_moved;
    double largest = 0;
    for (const double value : saved.state.at(name)) largest = std::max(largest, std::abs(value));
    EXPECT_GT(largest, 1e-6);
    const std::vector<double> before = Unsent(saved, parameter, values.size());
    const std::vector<double> after = Unsent(loaded, parameter, values.size());
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(after[i], before[i], 1e-15) << parameter;
  }
  EXPECT_GT(num_moved, 0);
  std::remove(path.c_str());
}

Values ValuesHere(Module& model) {
  Values values;
  for (const auto& [name, tensor] : CommunicationState(model)) {
    values[name] = tensor.ToLocal().ToVector<double>();
  }
  return values;
}

// What does not fit is refused before anything is loaded.
TEST(CommunicationStateTest, ARefusedLoadLeavesWhatIsKept) {
  const std::string path = testing::TempDir() + "/refused_communication.safetensors";
  RunRanks(2, [&](World& world) {
    CompressedTrainingOnRank training({.place = {"dp=2", DataPlan::kDdp}, .method = "int8"}, world);
    Gpt& model = training.model();
    training.Step(1);
    std::vector<std::pair<std::string, DTensor>> older = CommunicationState(model);
    const auto bad = [&](const Shape& shape, DType dtype) { return Full(model.context(), dtype, shape, 3); };
    std::vector<std::pair<std::string, DTensor>> files;  // the tensor that does not fit
    const std::string last = older.back().first;
    files.push_back({last, bad({2, 5}, DType::kF64)});
    files.push_back({last, bad(older.back().second.shape(), DType::kF32)});
    files.push_back(
        {absl::StrCat(last.substr(0, last.rfind('.')), ".replicas.residual"), bad({1}, DType::kF64)});
    files.push_back({"communication.round", bad({2}, DType::kI64)});
    files.push_back({"communication.round", bad({}, DType::kF64)});
    for (const auto& [name, tensor] : files) {
      std::vector<std::pair<std::string, DTensor>> tensors;
      for (const auto& entry : older) {
        if (entry.first != name) tensors.push_back(entry);
      }
      tensors.push_back({name, tensor});
      SaveTensors(path, tensors, {});
      training.Step(2);
      const Values before = ValuesHere(model);
      EXPECT_THAT(
          InvalidArgumentMessage([&] {
            SafetensorsReader reader(path);
            LoadCommunicationState(reader, model);
          }),
          HasSubstr(absl::StrCat("tensor '", name, "' is ", tensor.type().ToString(), ", expected ")));
      EXPECT_EQ(ValuesHere(model), before) << name;
      model.context()->Group({0}).Barrier();
    }
  });
  std::remove(path.c_str());
}

}  // namespace
}  // namespace weft
