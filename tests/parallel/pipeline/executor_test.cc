// Models that are cut into stages, run by schedules: the loss, the norm and every gradient are those of one device.

#include "parallel/pipeline/executor.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/clip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::HasSubstr;

constexpr int64_t kSequence = 8;

GptConfig Config(bool tied_head) {
  return {.vocabulary = 40,
          .context = kSequence,
          .layers = 6,
          .heads = 4,
          .dim = 16,
          .dropout = 0.1,
          .tied_head = tied_head};
}

// What a step is.
struct Outcome {
  double loss = 0;
  double norm_squared = 0;
  std::map<std::string, std::vector<double>> gradients = {};
};

Tensor Rows(int64_t first, int64_t count, int shift) {
  std::vector<int32_t> tokens;
  for (int64_t i = first * kSequence; i < (first + count) * kSequence; ++i) {
    // Targets that do not count, more of them in some microbatches than in others.
    const bool left_out = shift > 0 && i % 5 == 0 && i < 40;
    tokens.push_back(left_out ? -100 : static_cast<int32_t>((i * 7 + shift) % 40));
  }
  return Tensor::FromValues<int32_t>({count, kSequence}, tokens);
}

std::vector<Microbatch> Parts(const IntrusivePtr<MeshContext>& context, const Layout& layout,
                              const std::vector<int64_t>& rows) {
  std::vector<Microbatch> parts;
  int64_t first = 0;
  for (const int64_t count : rows) {
    parts.push_back({.inputs = {DTensor::Distribute(context, Rows(first, count, 0), layout)},
                     .targets = DTensor::Distribute(context, Rows(first, count, 3), layout),
                     .batch_offset = first});
    first += count;
  }
  return parts;
}

DTensor TotalOf(SegmentedModule& model, const std::vector<Microbatch>& parts) {
  const NoGradGuard no_grad(model.context()->state());
  DTensor total;
  for (const Microbatch& part : parts) {
    const DTensor count = model.CountOf(part.targets);
    total = total.defined() ? Add(total, count) : count;
  }
  return total.Redistribute(Layout(0, total.layout().num_axes()));
}

void TakeGradients(Gpt& model, Outcome* outcome) {
  for (const Parameter* parameter : model.AllParameters()) {
    if (!parameter->grad().defined()) continue;
    outcome->gradients[parameter->path()] = parameter->grad().FullTensor().ToVector<double>();
  }
  outcome->norm_squared = ComputeGlobalNorm(model.AllParameters(), 1.0).norm_squared.Item();
}

int64_t Sum(const std::vector<int64_t>& rows) {
  int64_t sum = 0;
  for (const int64_t each : rows) sum += each;
  return sum;
}

Outcome OneDevice(bool tied_head, const std::vector<int64_t>& rows) {
  Outcome outcome;
  RunRanks(1, [&](World& world) {
    Gpt model(Config(tied_head));
    const auto context = Bind(world, DeviceMesh());
    Materialize(model, context, {.dtype = DType::kF64});
    context->state().set_step(3);
    const std::vector<Microbatch> whole = Parts(context, Layout(2, 0), {Sum(rows)});
    const DTensor loss = model.Loss(whole[0].inputs[0], whole[0].targets).Mean();
    Backward(loss);
    outcome.loss = loss.Item();
    TakeGradients(model, &outcome);
  });
  return outcome;
}

struct Case {
  std::string schedule;
  std::string mesh;
  bool fully_sharded = false;
  bool sequence_parallel = false;
  bool tied_head = false;
  std::vector<int64_t> rows = {2, 2, 2, 2};
  int whole_stages = 3;

  std::string ToString() const {
    return absl::StrCat(schedule, " ", mesh, fully_sharded ? " fsdp" : "", sequence_parallel ? " sp" : "",
                        tied_head ? " tied" : "", " rows ", rows.size(), " of ", rows[0], " whole ",
                        whole_stages);
  }
};

Plan PlanOf(const Case& test, const PipelineSchedule& schedule, const DeviceMesh& mesh) {
  const bool is_v = schedule.num_chunks() == 2 && schedule.stage_rank.back() == 0;
  std::vector<PlanEntry> entries = {
      {"blocks.*", Pipeline("pp", {.chunks = schedule.num_chunks(),
                                   .order = is_v ? StageOrder::kV : StageOrder::kLoop})}};
  if (mesh.FindAxis("tp") >= 0) {
    StyleBorders residual;
    if (test.sequence_parallel) residual.output = Shard(1);
    entries.push_back({"wte", VocabParallel("tp", residual)});
    entries.push_back({"blocks.*.attn.qkv", ColumnParallel("tp")});
    entries.push_back({"blocks.*.attn.proj", RowParallel("tp", residual)});
    entries.push_back({"blocks.*.mlp.up", ColumnParallel("tp")});
    entries.push_back({"blocks.*.mlp.down", RowParallel("tp", residual)});
    if (!test.tied_head) entries.push_back({"head", ColumnParallel("tp")});
    if (test.sequence_parallel) {
      for (const char* norm : {"blocks.*.ln_1", "blocks.*.ln_2", "ln_f"}) {
        entries.push_back({norm, SequenceParallel("tp")});
      }
    }
  }
  if (mesh.FindAxis("dp") >= 0) {
    if (test.fully_sharded) {
      entries.push_back({"blocks.*", FullyShard("dp")});
      entries.push_back({"", FullyShard("dp")});
    } else {
      entries.push_back({"", DataParallel("dp")});
    }
  }
  return Plan(std::move(entries));
}

// Of all ranks: each stage's gradients come from its own.
Outcome Pipelined(const Case& test) {
  Outcome outcome;
  std::mutex mutex;
  const DeviceMesh mesh = DeviceMesh::Parse(test.mesh);
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    Gpt model(Config(test.tied_head));
    const PipelineSchedule schedule = GenerateSchedule(
        test.schedule,
        {.ranks = static_cast<int>(mesh.axis_size(0)), .microbatches = static_cast<int>(test.rows.size())});
    const auto context =
        Parallelize(model, world, mesh, PlanOf(test, schedule, mesh), {.dtype = DType::kF64});
    context->state().set_step(3);
    Layout layout(2, mesh.num_axes());
    if (mesh.FindAxis("dp") >= 0) layout = layout.WithShard(mesh.FindAxis("dp"), 0);
    const std::vector<Microbatch> parts = Parts(model.context(), layout, test.rows);
    PipelineExecutor pipeline(model, schedule, {.lowering = {.whole_stages = test.whole_stages}});
    const DTensor loss = pipeline.Run(parts, TotalOf(model, parts));
    Outcome mine;
    mine.loss = loss.Item();
    TakeGradients(model, &mine);
    const std::lock_guard<std::mutex> lock(mutex);
    outcome.loss = mine.loss;
    outcome.norm_squared = mine.norm_squared;
    for (auto& [path, gradient] : mine.gradients) {
      const auto [found, is_new] = outcome.gradients.try_emplace(path, gradient);
      EXPECT_EQ(found->second, gradient) << path << ": ranks disagree, " << test.ToString();
    }
  });
  return outcome;
}

double MaxDifference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

void ExpectOneDevice(const Case& test) {
  const Outcome expected = OneDevice(test.tied_head, test.rows);
  const Outcome outcome = Pipelined(test);
  EXPECT_NEAR(outcome.loss, expected.loss, 1e-12) << test.ToString();
  EXPECT_NEAR(outcome.norm_squared / expected.norm_squared, 1, 1e-11) << test.ToString();
  ASSERT_EQ(outcome.gradients.size(), expected.gradients.size()) << test.ToString();
  for (const auto& [path, gradient] : expected.gradients) {
    EXPECT_LT(MaxDifference(outcome.gradients.at(path), gradient), 1e-12) << path << " " << test.ToString();
  }
}

constexpr const char* kSchedules[] = {"1f1b",      "gpipe",  "interleaved",    "looped_bfs",
                                      "zb_h1",     "zb_h2",  "interleaved_zb", "zbv",
                                      "dualpipev", "v_half", "v_min"};

TEST(ExecutorTest, EveryScheduleComputesWhatOneDeviceDoes) {
  for (const char* schedule : kSchedules) {
    ExpectOneDevice({.schedule = schedule, .mesh = "pp=2"});
  }
}

TEST(ExecutorTest, WithDataTensorAndSequenceParallelBesideIt) {
  ExpectOneDevice({.schedule = "1f1b", .mesh = "pp=2, dp=2, tp=2", .fully_sharded = true, .tied_head = true});
  ExpectOneDevice(
      {.schedule = "zbv", .mesh = "pp=2, dp=2", .fully_sharded = true, .tied_head = true, .whole_stages = 1});
  ExpectOneDevice({.schedule = "zb_h1", .mesh = "pp=2, tp=2", .sequence_parallel = true});
  ExpectOneDevice({.schedule = "interleaved", .mesh = "pp=2, dp=2", .tied_head = true});
  ExpectOneDevice({.schedule = "gpipe", .mesh = "pp=2, dp=2", .fully_sharded = true, .whole_stages = 0});
}

TEST(ExecutorTest, MicrobatchesMayDifferInSize) {
  ExpectOneDevice({.schedule = "1f1b", .mesh = "pp=2, dp=2", .rows = {3, 1, 2, 3}});
  ExpectOneDevice({.schedule = "zbv", .mesh = "pp=2", .tied_head = true, .rows = {1, 3, 2, 1}});
}

TEST(ExecutorTest, FourStagesOnFourRanks) {
  ExpectOneDevice({.schedule = "zb_h2", .mesh = "pp=4", .tied_head = true, .rows = {1, 1, 1, 1, 1, 1, 1, 1}});
  ExpectOneDevice({.schedule = "1f1b", .mesh = "pp=4", .rows = {1, 2, 1, 2, 1}});
}

}  // namespace
}  // namespace weft
