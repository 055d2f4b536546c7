#include "tests/parallel/pipeline/pipeline_cases.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
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
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

constexpr int64_t kSequence = 8;

GptConfig Config(bool tied_head, int layers) {
  return {.vocabulary = 40,
          .context = kSequence,
          .layers = layers,
          .heads = 4,
          .dim = 16,
          .dropout = 0.1,
          .tied_head = tied_head};
}

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

// What `runs` steps of the same batch have come to, each. The norm is the model's own account of it.
TrainingResult ResultOf(Gpt& model, double loss, int runs) {
  FullTensors gradients;
  for (const Parameter* parameter : model.AllParameters()) {
    if (!parameter->grad().defined()) continue;
    std::vector<double>& gradient = gradients[parameter->path()];
    gradient = parameter->grad().FullTensor().ToVector<double>();
    for (double& element : gradient) element /= runs;
  }
  TrainingResult result = OneStep(loss, std::move(gradients));
  const DTensor norm_squared = ComputeGlobalNorm(model.AllParameters(), 1.0).norm_squared;
  result.grad_norms = {std::sqrt(norm_squared.Item()) / runs};
  return result;
}

int64_t Sum(const std::vector<int64_t>& rows) {
  int64_t sum = 0;
  for (const int64_t each : rows) sum += each;
  return sum;
}

void Hang(const PipelineCase& test, World& world, Parameter& table) {
  if (test.hook == nullptr || !table.is_here()) return;
  table.AddGradientReady([&](Parameter& of) { test.hook(world, of); });
}

TrainingResult OneDevice(const PipelineCase& test) {
  TrainingResult result;
  RunRanks(1, [&](World& world) {
    Gpt model(Config(test.tied_head, test.layers));
    const auto context = Bind(world, DeviceMesh());
    Materialize(model, context, {.dtype = DType::kF64});
    Hang(test, world, model.wte.weight);
    context->state().set_step(3);
    const std::vector<Microbatch> whole = Parts(context, Layout(2, 0), {Sum(test.rows)});
    const int runs = test.hook != nullptr ? test.runs : 1;
    double loss = 0;
    for (int i = 0; i < runs; ++i) {
      const DTensor of_run = model.Loss(whole[0].inputs[0], whole[0].targets).Mean();
      Backward(of_run);
      loss = of_run.Item();
    }
    result = ResultOf(model, loss, runs);
  });
  return result;
}

// One that nothing is hung on is computed once.
TrainingResult KnownOneDevice(const PipelineCase& test) {
  static std::mutex mutex;
  static std::map<std::tuple<bool, int, std::vector<int64_t>>, TrainingResult> known;
  if (test.hook != nullptr) return OneDevice(test);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [found, is_new] = known.try_emplace({test.tied_head, test.layers, test.rows});
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
  if (mesh.FindAxis("shard") >= 0) {
    entries.push_back({"blocks.*", FullyShard("shard")});
    entries.push_back({"", FullyShard("shard")});
    entries.push_back({"", DataParallel("replica")});
  }
  if (test.recompute) entries.push_back({"blocks.*", *test.recompute});
  return Plan(std::move(entries));
}

// Of all ranks: each stage's gradients come from its own.
TrainingResult Pipelined(const PipelineCase& test, const PipelineMistake& mistake, const RankLauncher& launch,
                         std::vector<std::string>* differences) {
  TrainingResult result;
  std::mutex mutex;
  const DeviceMesh mesh = DeviceMesh::Parse(test.mesh);
  launch(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    Gpt model(Config(test.tied_head && !test.declares_tie, test.layers));
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
    for (const char* axis : {"dp", "replica", "shard"}) {
      if (mesh.FindAxis(axis) >= 0) layout = layout.WithShard(mesh.FindAxis(axis), 0);
    }
    std::vector<Microbatch> parts = Parts(model.context(), layout, test.rows);
    const DTensor total = TotalOf(model, parts);
    if (mistake.in_parts) mistake.in_parts(world, parts);
    if (mistake.in_data) {
      ModelStages stages = *model.stages();
      stages.data = mistake.in_data(stages.data);
      model.set_stages(std::move(stages));
    }
    PipelineExecutor pipeline(model, schedule, {.lowering = {.whole_stages = test.whole_stages}});
    double loss = 0;
    for (int i = 0; i < test.runs; ++i) loss = pipeline.Run(parts, total).Item();
    const TrainingResult mine = ResultOf(model, loss, test.runs);
    const std::lock_guard<std::mutex> lock(mutex);
    result.losses = mine.losses;
    result.grad_norms = mine.grad_norms;
    for (const auto& [path, gradient] : mine.gradients.at(1)) {
      const auto [found, is_new] = result.gradients[1].try_emplace(path, gradient);
      if (found->second != gradient) differences->push_back(absl::StrCat(path, ": ranks disagree"));
    }
  });
  return result;
}

}  // namespace

std::string PipelineCase::ToString() const {
  return absl::StrCat(schedule, " ", mesh, fully_sharded ? " fsdp" : "", sequence_parallel ? " sp" : "",
                      tied_head ? " tied" : "", declares_tie ? " by declaration" : "", " rows ",
                      absl::StrJoin(rows, " "), " whole ", whole_stages, " layers ", layers, " runs ", runs);
}

std::vector<std::string> DifferencesFromOneDevice(const PipelineCase& test, const PipelineMistake& mistake,
                                                  const RankLauncher& launch) {
  const TrainingResult expected = KnownOneDevice(test);
  std::vector<std::string> differences;
  const TrainingResult result = Pipelined(test, mistake, launch, &differences);
  for (std::string& each : Differences(expected, result, kF64Tolerance)) {
    differences.push_back(std::move(each));
  }
  return differences;
}

}  // namespace weft
