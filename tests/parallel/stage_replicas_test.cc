// What several stages of a pipeline have is held to the same bits: at the start, and in training.

#include "parallel/stage_replicas.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "parallel/trainer.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

GptConfig TiedGpt() {
  return {
      .vocabulary = 24, .context = 4, .layers = 4, .heads = 2, .dim = 8, .dropout = 0.1, .tied_head = true};
}

Plan PlanOf(const DeviceMesh& mesh, const PipelineOptions& options = {}) {
  std::vector<PlanEntry> entries = {{"blocks.*", Pipeline("pp", options)}};
  if (mesh.FindAxis("dp") >= 0) entries.push_back({"", DataParallel("dp")});
  if (mesh.FindAxis("fs") >= 0) entries.push_back({"", FullyShard("fs")});
  if (mesh.FindAxis("tp") >= 0) entries.push_back({"wte", VocabParallel("tp")});
  return Plan(std::move(entries));
}

// What Parallelize says on each rank, with these seeds of the ranks.
std::vector<std::string> Messages(const std::string& mesh_text, const std::vector<uint64_t>& seeds,
                                  StartValues start_values = StartValues::kCompare, bool tied = true) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  std::vector<std::string> messages(seeds.size());
  RunRanks(static_cast<int>(seeds.size()), [&](World& world) {
    GptConfig config = TiedGpt();
    config.tied_head = tied;
    Gpt model(config);
    const auto context = Bind(world, mesh);
    context->state().set_seed(seeds[world.rank()]);
    messages[world.rank()] =
        MessageOf([&] { Parallelize(model, context, PlanOf(mesh), {.start_values = start_values}); });
  });
  return messages;
}

std::vector<std::string> OnAll(size_t num_ranks, const std::string& message) {
  return std::vector<std::string>(num_ranks, message);
}

std::string Differs(const std::string& ranks, int first) {
  return "Parallelize: parameter 'wte.weight' starts with other values on " + ranks + " than on rank " +
         std::to_string(first) +
         ": expected the same on all replicas (the same seed, the same machines), or StartValues::kBroadcast";
}

TEST(StageReplicasTest, StagesThatBeginWithOtherValuesAreNamedOnEveryRank) {
  EXPECT_EQ(Messages("pp=2", {7, 7}), OnAll(2, "no error"));
  EXPECT_EQ(Messages("pp=2", {7, 8}), OnAll(2, Differs("rank 1", 0)));
  EXPECT_EQ(Messages("pp=4", {7, 8, 9, 7}), OnAll(4, "no error"));  // the first and the last have it
  EXPECT_EQ(Messages("pp=4", {7, 7, 7, 8}), OnAll(4, Differs("rank 3", 0)));
  EXPECT_EQ(Messages("pp=2,dp=2", {7, 7, 8, 8}), OnAll(4, Differs("rank 2", 0)));
  EXPECT_EQ(Messages("pp=2,dp=2", {7, 8, 7, 7}), OnAll(4, Differs("rank 3", 1)));  // within a stage, too
  EXPECT_EQ(Messages("pp=2", {7, 8}, StartValues::kTrust), OnAll(2, "no error"));
  EXPECT_EQ(Messages("pp=2", {7, 8}, StartValues::kCompare, /*tied=*/false), OnAll(2, "no error"));
}

// Of what no other stage has, too: none goes on and waits for a stage that has ended.
TEST(StageReplicasTest, ADifferenceWithinAStageIsNamedOnEveryRank) {
  const std::vector<std::string> messages =
      Messages("pp=2,dp=2", {7, 7, 7, 8}, StartValues::kCompare, /*tied=*/false);
  EXPECT_THAT(messages[0], HasSubstr("starts with other values on rank 3 than on rank 2"));
  EXPECT_EQ(messages, OnAll(4, messages[0]));
}

// Pieces are compared with the same piece of the other stage.
TEST(StageReplicasTest, PiecesToo) {
  EXPECT_EQ(Messages("pp=2,fs=2", {7, 8, 7, 8}), OnAll(4, "no error"));
  EXPECT_EQ(Messages("pp=2,fs=2", {7, 8, 7, 9}), OnAll(4, Differs("rank 3", 1)));
  EXPECT_EQ(Messages("fs=2,pp=2", {7, 7, 8, 9}), OnAll(4, Differs("rank 3", 2)));
}

TEST(StageReplicasTest, AllStagesTakeTheFirstOnesValues) {
  for (const char* mesh_text : {"pp=2", "pp=4", "pp=2,dp=2", "pp=2,fs=2"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    const auto num_ranks = static_cast<int>(mesh.num_ranks());
    std::vector<std::vector<float>> tables(num_ranks);
    std::vector<float> expected;
    RunRanks(num_ranks, [&](World& world) {
      Gpt model(TiedGpt()), alike(TiedGpt());
      const auto context = Bind(world, mesh);
      context->state().set_seed(7);
      Parallelize(alike, context, PlanOf(mesh));
      if (world.rank() == 0) expected = alike.wte.weight.at_rest().ToLocal().ToVector<float>();
      // Replicas within a stage differ, too; FullyShard's pieces are those of one table.
      context->state().set_seed(mesh.FindAxis("fs") >= 0 ? 7 + context->coordinate()[0] : 7 + world.rank());
      Parallelize(model, context, PlanOf(mesh), {.start_values = StartValues::kBroadcast});
      if (!model.wte.weight.is_here()) return;
      tables[world.rank()] = model.wte.weight.at_rest().ToLocal().ToVector<float>();
    });
    const bool is_split = mesh.FindAxis("fs") >= 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (tables[rank].empty()) continue;
      EXPECT_EQ(tables[rank], is_split && rank % 2 == 1 ? tables[1] : expected) << mesh_text << " " << rank;
    }
    EXPECT_EQ(tables[num_ranks - 1].empty(), false) << mesh_text;
  }
}

TEST(StageReplicasTest, WhichParametersStagesHaveInCommon) {
  for (const bool is_v : {false, true}) {
    RunRanks(2, [&](World& world) {
      Gpt model(TiedGpt());
      const DeviceMesh mesh = DeviceMesh::Parse("pp=2");
      const PipelineOptions options =
          is_v ? PipelineOptions{.chunks = 2, .order = StageOrder::kV} : PipelineOptions{.chunks = 2};
      Parallelize(model, world, mesh, PlanOf(mesh, options));
      const std::vector<SharedParameter> shared = ParametersOfSeveralStages(model, *model.stages());
      if (is_v) {  // rank 0 has the first stage and the last
        EXPECT_TRUE(shared.empty());
        return;
      }
      ASSERT_EQ(shared.size(), 1u);
      EXPECT_EQ(shared[0].parameter, &model.wte.weight);
      EXPECT_THAT(shared[0].indices, ElementsAre(0, 1));
    });
  }
}

// Two all-reduces where there is something to compare, and none where there is not.
TEST(StageReplicasTest, WhatAComparisonMoves) {
  for (const bool tied : {true, false}) {
    RunRanks(4, [&](World& world) {
      GptConfig config = TiedGpt();
      config.tied_head = tied;
      Gpt model(config);
      const DeviceMesh mesh = DeviceMesh::Parse("pp=2,fs=2");
      const auto context = Bind(world, mesh);
      world.ledger().Clear();
      Parallelize(model, context, PlanOf(mesh));
      int64_t calls = 0, bytes = 0;
      for (const LedgerEntry& entry : world.ledger().entries()) {
        if (entry.kind != CollectiveKind::kAllReduce) continue;
        EXPECT_EQ(entry.tag.purpose, static_cast<uint8_t>(Purpose::kMetric));
        calls += entry.calls;
        bytes += entry.num_bytes;
      }
      EXPECT_EQ(calls, tied ? 2 : 0);  // nothing is replicated within a stage
      const int64_t along = world.rank() < 2 ? 2 * 16 : 0, overall = world.rank() == 0 ? 2 * 3 * 8 : 0;
      EXPECT_EQ(bytes, tied ? along + overall : 0);
    });
  }
}

// Steps of a tied model in two stages, whose replicas are compared after each.
struct StagedJob {
  StagedJob(World& world, const DeviceMesh& mesh)
      : model(TiedGpt()), context(Parallelize(model, world, mesh, PlanOf(mesh), {.dtype = DType::kF64})) {
    pipeline.emplace(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2}));
    adamw.emplace(model.AllParameters(), AdamWOptions{.weight_decay = 0.1});
    trainer.emplace(model, *adamw,
                    TrainerOptions{.schedule = [this](int64_t) { return lr; }, .check_replicas_every = 1});
  }

  void Step() {
    std::vector<Microbatch> parts;
    for (int part = 0; part < 2; ++part) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < 2 * 4; ++i) tokens.push_back((i * 7 + part) % 24);
      Layout layout(2, context->mesh().num_axes());
      for (const char* axis : {"dp", "fs"}) {
        const int index = context->mesh().FindAxis(axis);
        if (index >= 0) layout = layout.WithShard(index, 0);
      }
      const DTensor rows =
          DTensor::Distribute(model.context(), Tensor::FromValues<int32_t>({2, 4}, tokens), layout);
      parts.push_back({.inputs = {rows}, .targets = rows, .batch_offset = 2 * part});
    }
    trainer->Step(*pipeline, std::move(parts));
    trainer->Flush();
  }

  double lr = 1e-2;
  Gpt model;
  IntrusivePtr<MeshContext> context;
  std::optional<PipelineExecutor> pipeline;
  std::optional<AdamW> adamw;
  std::optional<Trainer> trainer;
};

// Of the first element, the lower half of its bits: an update does not round it away.
void MoveALittle(const DTensor& tensor) { *tensor.ToLocal().data<double>() *= 1 + 1e-7; }

// Steps of AdamW: both stages have the same bits of the table, whatever stands beside them, and it has moved.
TEST(StageReplicasTest, ATiedTableStaysOneInTraining) {
  for (const char* mesh_text : {"pp=2", "pp=2,dp=2", "pp=2,fs=2", "pp=2,tp=2"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    std::vector<std::vector<double>> tables(mesh.num_ranks()), first(mesh.num_ranks());
    RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
      StagedJob job(world, mesh);
      const DTensor& table = job.model.wte.weight.at_rest();
      first[world.rank()] = table.ToLocal().ToVector<double>();
      for (int step = 0; step < 5; ++step) job.Step();
      tables[world.rank()] = table.ToLocal().ToVector<double>();
    });
    const size_t half = tables.size() / 2;  // the ranks of a stage
    for (size_t rank = 0; rank < half; ++rank) {
      EXPECT_EQ(tables[rank], tables[half + rank]) << mesh_text << " rank " << rank;
      EXPECT_NE(tables[rank], first[rank]) << mesh_text << " rank " << rank;
    }
  }
}

// What each rank says of a step after `drift`.
std::vector<std::string> AfterDrift(const std::string& mesh_text,
                                    const std::function<void(World& world, StagedJob& job)>& drift) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  std::vector<std::string> messages(mesh.num_ranks());
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    StagedJob job(world, mesh);
    for (int step = 0; step < 3; ++step) job.Step();
    drift(world, job);
    messages[world.rank()] = MessageOf([&] { job.Step(); });
  });
  return messages;
}

TEST(StageReplicasTest, StagesThatDriftApartAreNamedOnEveryRank) {
  const auto table = [](World& world, StagedJob& job) {
    if (world.rank() + 1 == world.size()) MoveALittle(job.model.wte.weight.at_rest());
  };
  const auto nothing = [](World&, StagedJob&) {};
  EXPECT_EQ(AfterDrift("pp=2", nothing), OnAll(2, "no error"));
  EXPECT_EQ(AfterDrift("pp=2,tp=2", nothing), OnAll(4, "no error"));
  const std::string drifted = ": replicas have drifted apart";
  EXPECT_EQ(AfterDrift("pp=2", table),
            OnAll(2, "step 4: parameter 'wte.weight' has other bits on rank 1 than on rank 0" + drifted));
  EXPECT_EQ(AfterDrift("pp=2,dp=2", table),
            OnAll(4, "step 4: parameter 'wte.weight' has other bits on rank 3 than on rank 1" + drifted));
  EXPECT_EQ(AfterDrift("pp=2,tp=2", table),
            OnAll(4, "step 4: parameter 'wte.weight' has other bits on rank 3 than on rank 1" + drifted));
}

// Of what no other stage has, too: none goes on and waits for a stage that has ended.
TEST(StageReplicasTest, ADriftWithinAStageIsNamedOnEveryRank) {
  const auto norm = [](World& world, StagedJob& job) {
    if (world.rank() + 1 == world.size()) MoveALittle(job.model.ln_f.weight.at_rest());
  };
  EXPECT_EQ(AfterDrift("pp=2,dp=2", norm),
            OnAll(4,
                  "step 4: parameter 'ln_f.weight' has other bits on rank 3 than on rank 2: "
                  "replicas have drifted apart"));
}

TEST(StageReplicasTest, TheOptimizersStateToo) {
  const auto moment = [](World& world, StagedJob& job) {
    job.lr = 0;  // so that parameters stay as they are
    for (const auto& [name, state] : job.adamw->State()) {
      if (name == "wte.weight.v" && world.rank() == 1) MoveALittle(state);
    }
  };
  EXPECT_EQ(AfterDrift("pp=2", moment),
            OnAll(2,
                  "step 4: the optimizer's state of 'wte.weight' has other bits on rank 1 than on rank 0: "
                  "replicas have drifted apart"));
}

}  // namespace
}  // namespace weft
