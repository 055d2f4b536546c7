#include "tests/parallel/training_run.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/sgd.h"
#include "examples/gpt/gpt_plan.h"
#include "parallel/parallelize.h"
#include "runtime/base/philox.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

// The whole batch of a step, the same on every rank. i32 [b, s].
Tensor Batch(const TrainingRun& run, int64_t step, absl::string_view what, bool some_ignored) {
  std::vector<int32_t> values;
  const RandomKey key = {.seed = 11, .stream = StreamOf(what), .step = static_cast<uint64_t>(step)};
  for (int64_t i = 0; i < run.batch * run.context; ++i) {
    const double uniform = UniformAt(key, static_cast<uint64_t>(i));
    const bool ignored = some_ignored && i % 11 == 3;
    values.push_back(ignored ? -100 : static_cast<int32_t>(uniform * static_cast<double>(run.vocabulary)));
  }
  return Tensor::FromValues<int32_t>({run.batch, run.context}, values);
}

std::unique_ptr<Optimizer> MakeOptimizer(const TrainingRun& run, const std::vector<Parameter*>& parameters) {
  if (run.optimizer == TrainingRun::Optimizer::kSgd) return std::make_unique<Sgd>(parameters, SgdOptions());
  return std::make_unique<AdamW>(parameters, AdamWOptions{.beta2 = 0.99, .weight_decay = 0.1});
}

// Every rank calls it; all get the whole values.
FullTensors Gather(const std::vector<Parameter*>& parameters, bool gradients) {
  FullTensors full;
  for (const Parameter* parameter : parameters) {
    const DTensor& value = gradients ? parameter->grad() : parameter->at_rest();
    full[parameter->path()] = value.FullTensor().ToVector<double>();
  }
  return full;
}

// Forward and backward of the whole batch; the loss.
DTensor LossOfBatch(const IntrusivePtr<MeshContext>& context, const TrainingRun& run, const Layout& layout,
                    int64_t step, Module& model) {
  const DTensor tokens =
      DTensor::Distribute(context, Batch(run, step, "tokens", /*some_ignored=*/false), layout);
  const DTensor targets =
      DTensor::Distribute(context, Batch(run, step, "targets", /*some_ignored=*/true), layout);
  const DTensor loss = run.mean(CrossEntropy(model(tokens), targets));
  Backward(loss);
  return loss;
}

// The same of its rows in parts, the first larger if they do not divide; every part may be uneven on the ranks.
DTensor LossOfMicrobatches(const IntrusivePtr<MeshContext>& context, const TrainingRun& run,
                           const Layout& layout, int64_t step, Module& model) {
  RankState& state = context->state();
  const Tensor all_tokens = Batch(run, step, "tokens", /*some_ignored=*/false);
  const Tensor all_targets = Batch(run, step, "targets", /*some_ignored=*/true);
  std::vector<std::pair<int64_t, int64_t>> parts;  // first row, number of rows
  for (int64_t i = 0, row = 0; i < run.microbatches; ++i) {
    const int64_t rows = run.batch / run.microbatches + (i < run.batch % run.microbatches ? 1 : 0);
    parts.push_back({row, rows});
    row += rows;
  }
  const auto piece = [&](const Tensor& all, size_t i) {
    return DTensor::Distribute(context, all.Slice(0, parts[i].first, parts[i].second), layout);
  };
  DTensor total;
  for (size_t i = 0; i < parts.size(); ++i) {
    const DTensor count = CountTargets(piece(all_targets, i));
    total = total.defined() ? Add(total, count) : count;
  }
  total = total.Redistribute(Layout(/*ndim=*/0, context->mesh().num_axes()));
  DTensor loss;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::optional<NoSync> no_sync;
    if (i + 1 < parts.size()) no_sync.emplace(state);
    const BatchOffsetGuard offset(state, parts[i].first);
    const DTensor part =
        run.over_total(CrossEntropy(model(piece(all_tokens, i)), piece(all_targets, i)), total);
    Backward(part);
    loss = loss.defined() ? Add(loss, part.Detach()) : part.Detach();
  }
  return loss;
}

TrainingResult TrainRank(World& world, const TrainingRun& run) {
  const std::unique_ptr<Module> model = run.make_model();
  const IntrusivePtr<MeshContext> context = Bind(world, run.mesh);
  context->state().set_seed(5);
  Parallelize(*model, context, run.plan, {.dtype = run.dtype, .compute_dtype = run.compute_dtype});
  if (run.after_parallelize) run.after_parallelize(*model);
  const std::vector<Parameter*> parameters = model->AllParameters();
  const bool sgd = run.optimizer == TrainingRun::Optimizer::kSgd;
  const std::unique_ptr<Optimizer> optimizer = MakeOptimizer(run, parameters);
  const Layout layout = BatchLayout(run.mesh, run.plan);
  TrainingResult result;
  result.initial = Gather(parameters, /*gradients=*/false);
  for (int64_t step = 1; step <= run.steps; ++step) {
    context->state().set_step(static_cast<uint64_t>(step));
    const DTensor loss = run.microbatches == 1 ? LossOfBatch(context, run, layout, step, *model)
                                               : LossOfMicrobatches(context, run, layout, step, *model);
    if (run.after_backward) run.after_backward(parameters);
    const GlobalNorm norm = ComputeGlobalNorm(parameters, sgd ? 0 : 1);
    result.losses.push_back(loss.Item());
    result.grad_norms.push_back(std::sqrt(norm.norm_squared.Item()));
    if (std::count(run.gradient_steps.begin(), run.gradient_steps.end(), step) > 0) {
      result.gradients[step] = Gather(parameters, /*gradients=*/true);
    }
    optimizer->Step(sgd ? 0.1 : 1e-3, norm.scale);
    if (run.after_update) run.after_update(parameters);
    optimizer->ZeroGrad();
  }
  return result;
}

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

double Distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double Relative(double expected, double actual) { return std::abs(actual - expected) / std::abs(expected); }

// One deviation with its bound, in the units of its tolerance.
struct Deviation {
  std::string what;
  double value = 0;
  double bound = 0;
};

std::vector<Deviation> Deviations(const TrainingResult& expected, const TrainingResult& actual,
                                  const Tolerance& tolerance) {
  std::vector<Deviation> all;
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    const double value = i < actual.losses.size() ? Relative(expected.losses[i], actual.losses[i]) : INFINITY;
    all.push_back({absl::StrCat("loss of step ", i + 1), value, tolerance.loss});
  }
  for (const auto& [step, gradients] : expected.gradients) {
    const double global_norm = expected.grad_norms[step - 1];
    all.push_back({absl::StrCat("grad_norm of step ", step),
                   Relative(global_norm, actual.grad_norms[step - 1]), tolerance.grad_norm});
    for (const auto& [path, gradient] : gradients) {
      const double norm = Norm(gradient);
      const FullTensors& found = actual.gradients.at(step);
      const double distance = found.count(path) > 0 ? Distance(gradient, found.at(path)) : INFINITY;
      all.push_back({absl::StrCat("gradient of ", path, " after step ", step), distance / norm,
                     tolerance.gradient + tolerance.gradient_floor * global_norm / norm});
    }
  }
  return all;
}

}  // namespace

GptConfig SmallGptConfig() {
  return {.vocabulary = 257, .context = 16, .layers = 2, .heads = 4, .dim = 32, .dropout = 0.1};
}

std::function<std::unique_ptr<Module>()> MakeGpt(const GptConfig& config) {
  return [config] { return std::make_unique<Gpt>(config); };
}

TrainingResult OneStep(double loss, FullTensors gradients) {
  double norm_squared = 0;
  for (const auto& [path, gradient] : gradients) norm_squared += std::pow(Norm(gradient), 2);
  return {.initial = {},
          .losses = {loss},
          .grad_norms = {std::sqrt(norm_squared)},
          .gradients = {{1, std::move(gradients)}}};
}

TrainingResult Train(const TrainingRun& run) {
  TrainingResult result;
  RunRanks(static_cast<int>(run.mesh.num_ranks()),
           [&](World& world) {
             const std::unique_ptr<World> wrapped = run.wrap_world ? run.wrap_world(world) : nullptr;
             TrainingResult mine = TrainRank(wrapped ? *wrapped : world, run);
             if (world.rank() == 0) result = std::move(mine);
           },
           {.device = run.device, .threads_per_rank = 1, .comm_timeout = std::chrono::minutes(2)});
  return result;
}

std::vector<std::string> Differences(const TrainingResult& expected, const TrainingResult& actual,
                                     const Tolerance& tolerance) {
  std::vector<std::string> differences;
  for (const auto& [path, value] : expected.initial) {
    const auto found = actual.initial.find(path);
    if (found == actual.initial.end() || found->second != value) {
      differences.push_back(absl::StrCat("initial value of ", path));
    }
  }
  for (const Deviation& deviation : Deviations(expected, actual, tolerance)) {
    if (deviation.value <= deviation.bound) continue;  // a NaN is not
    differences.push_back(
        absl::StrFormat("%s: off by %.2e, allowed %.2e", deviation.what, deviation.value, deviation.bound));
  }
  return differences;
}

std::string DeviationSummary(const TrainingResult& expected, const TrainingResult& actual) {
  std::map<std::string, Deviation> worst;  // by the first word
  for (const Deviation& deviation : Deviations(expected, actual, Tolerance())) {
    Deviation& slot = worst[deviation.what.substr(0, deviation.what.find(' '))];
    if (slot.what.empty() || deviation.value > slot.value) slot = deviation;
  }
  std::string text;
  for (const auto& [kind, deviation] : worst) {
    absl::StrAppendFormat(&text, "%s %.2e  ", deviation.what, deviation.value);
  }
  return text;
}

}  // namespace weft
