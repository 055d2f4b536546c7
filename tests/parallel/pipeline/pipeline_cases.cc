#include "tests/parallel/pipeline/pipeline_cases.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/clip.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

constexpr int64_t kSequence = 8;

GptConfig Config(bool tied_head) {
  return {.vocabulary = 40,
          .context = kSequence,
          .layers = 8,
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

// By the mean of the runs.
void TakeMeans(Gpt& model, int runs, Outcome* outcome) {
  TakeGradients(model, outcome);
  outcome->norm_squared /= runs * runs;
  for (auto& [path, gradient] : outcome->gradients) {
    for (double& element : gradient) element /= runs;
  }
}

void Hang(const PipelineCase& test, World& world, Parameter& table) {
  if (test.hook == nullptr || !table.is_here()) return;
  table.AddGradientReady([&](Parameter& of) { test.hook(world, of); });
}

Outcome OneDevice(const PipelineCase& test) {
  Outcome outcome;
  RunRanks(1, [&](World& world) {
    Gpt model(Config(test.tied_head));
    const auto context = Bind(world, DeviceMesh());
    Materialize(model, context, {.dtype = DType::kF64});
    Hang(test, world, model.wte.weight);
    context->state().set_step(3);
    const std::vector<Microbatch> whole = Parts(context, Layout(2, 0), {Sum(test.rows)});
    const int runs = test.hook != nullptr ? test.runs : 1;
    for (int i = 0; i < runs; ++i) {
      const DTensor loss = model.Loss(whole[0].inputs[0], whole[0].targets).Mean();
      Backward(loss);
      outcome.loss = loss.Item();
    }
    TakeMeans(model, runs, &outcome);
  });
  return outcome;
}

// One that nothing is hung on is computed once.
Outcome KnownOneDevice(const PipelineCase& test) {
  static std::mutex mutex;
  static std::map<std::pair<bool, std::vector<int64_t>>, Outcome> known;
  if (test.hook != nullptr) return OneDevice(test);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [found, is_new] = known.try_emplace({test.tied_head, test.rows});
  if (is_new) found->second = OneDevice(test);
  return found->second;
}

Plan PlanOf(const PipelineCase& test, const PipelineSchedule& schedule, const DeviceMesh& mesh) {
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
      entries.push_back({"", test.data.value_or(DataParallel("dp"))});
    }
  }
  if (test.recompute) entries.push_back({"blocks.*", *test.recompute});
  return Plan(std::move(entries));
}

// Of all ranks: each stage's gradients come from its own.
Outcome Pipelined(const PipelineCase& test, const PipelineMistake& mistake,
                  std::vector<std::string>* differences) {
  Outcome outcome;
  std::mutex mutex;
  const DeviceMesh mesh = DeviceMesh::Parse(test.mesh);
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    Gpt model(Config(test.tied_head && !test.declares_tie));
    Parameter& table = test.declares_tie ? dynamic_cast<Linear&>(*model.head).weight : model.wte.weight;
    if (test.declares_tie) table.TieTo(model.wte.weight, /*transposed=*/true);
    const PipelineSchedule schedule = GenerateSchedule(
        test.schedule,
        {.ranks = static_cast<int>(mesh.axis_size(0)), .microbatches = static_cast<int>(test.rows.size())});
    const auto context =
        Parallelize(model, world, mesh, PlanOf(test, schedule, mesh), {.dtype = DType::kF64});
    Hang(test, world, table);
    context->state().set_step(3);
    Layout layout(2, mesh.num_axes());
    if (mesh.FindAxis("dp") >= 0) layout = layout.WithShard(mesh.FindAxis("dp"), 0);
    std::vector<Microbatch> parts = Parts(model.context(), layout, test.rows);
    const DTensor total = TotalOf(model, parts);
    if (mistake.in_parts) mistake.in_parts(world, parts);
    if (mistake.in_data) {
      ModelStages stages = *model.stages();
      stages.data = mistake.in_data(stages.data);
      model.set_stages(std::move(stages));
    }
    PipelineExecutor pipeline(model, schedule, {.lowering = {.whole_stages = test.whole_stages}});
    Outcome mine;
    for (int i = 0; i < test.runs; ++i) mine.loss = pipeline.Run(parts, total).Item();
    TakeMeans(model, test.runs, &mine);
    const std::lock_guard<std::mutex> lock(mutex);
    outcome.loss = mine.loss;
    outcome.norm_squared = mine.norm_squared;
    for (auto& [path, gradient] : mine.gradients) {
      const auto [found, is_new] = outcome.gradients.try_emplace(path, gradient);
      if (found->second != gradient) differences->push_back(absl::StrCat(path, ": ranks disagree"));
    }
  });
  return outcome;
}

double MaxDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace

std::string PipelineCase::ToString() const {
  return absl::StrCat(schedule, " ", mesh, fully_sharded ? " fsdp" : "", sequence_parallel ? " sp" : "",
                      tied_head ? " tied" : "", declares_tie ? " by declaration" : "", " rows ",
                      absl::StrJoin(rows, " "), " whole ", whole_stages, " runs ", runs);
}

std::vector<std::string> DifferencesFromOneDevice(const PipelineCase& test, const PipelineMistake& mistake) {
  const Outcome expected = KnownOneDevice(test);
  std::vector<std::string> differences;
  const Outcome outcome = Pipelined(test, mistake, &differences);
  const auto differ = [&](const std::string& what, double difference, double allowed) {
    if (!(difference <= allowed)) differences.push_back(absl::StrCat(what, " differs by ", difference));
  };
  differ("loss", std::abs(outcome.loss - expected.loss), 1e-12);
  differ("norm", std::abs(outcome.norm_squared / expected.norm_squared - 1), 1e-11);
  for (const auto& [path, gradient] : expected.gradients) {
    const auto found = outcome.gradients.find(path);
    if (found == outcome.gradients.end() || found->second.size() != gradient.size()) {
      differences.push_back(absl::StrCat(path, " has no such gradient"));
    } else {
      differ(path, MaxDifference(found->second, gradient), 1e-12);
    }
  }
  return differences;
}

}  // namespace weft
