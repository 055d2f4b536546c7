#include "parallel/trainer.h"

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/context/fold_in_guard.h"
#include "dtensor/functions.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/tied_names.h"
#include "dtensor/redistribution/agreement.h"
#include "parallel/compression/communication_state.h"
#include "parallel/stage_replicas.h"

namespace weft {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void CheckMicrobatches(int microbatches) {
  WEFT_REQUIRE(microbatches >= 1, "Trainer::Step: expected at least one microbatch, got ", microbatches);
}

MeshContext& WholeContext(const Module& model) {
  const auto* const segmented = dynamic_cast<const SegmentedModule*>(&model);
  return segmented != nullptr && segmented->stages() ? *segmented->stages()->context : *model.context();
}

// A scalar that all ranks of a model have alike, on another of its meshes.
DTensor OnMesh(const IntrusivePtr<MeshContext>& context, const DTensor& scalar) {
  if (scalar.context()->mesh() == context->mesh()) return scalar;
  const Layout replicated(/*ndim=*/0, context->mesh().num_axes());
  return DTensor::FromLocal(context, scalar.ToLocal(), replicated, Shape());
}
DTensor OnMeshOf(const DTensor& like, const DTensor& scalar) { return OnMesh(like.context(), scalar); }

// Forward of a step's parts once more, with the random bits that they had.
template <class Part>
std::function<void()> ReplayOf(RankState& state, int num_parts, Part part) {
  return
      [&state, num_parts, fold = state.random_fold(), offset = state.batch_offset(), part = std::move(part)] {
        const FoldInGuard same_fold(state, fold);
        const BatchOffsetGuard same_rows(state, offset);
        for (int i = 0; i < num_parts; ++i) {
          state.ResetCallNumbers();
          part(i);
        }
      };
}

std::string DriftOf(const std::optional<ReplicaDifference>& difference) {
  if (!difference) return "";
  const std::string ranks = difference->ToString();
  return absl::StrCat(difference->name, " has other bits on ", ranks, ": replicas have drifted apart");
}

void ThrowIfDrifted(int64_t step, const std::string& drift) {
  if (!drift.empty()) Throw(absl::StatusCode::kDataLoss, "step ", step, ": ", drift);
}

}  // namespace

Trainer::Trainer(Module& model, Optimizer& optimizer, TrainerOptions options)
    : model_(model),
      context_(WholeContext(model)),
      options_(std::move(options)),
      optimizer_(optimizer),
      records_(context_) {
  WEFT_REQUIRE(options_.schedule, "Trainer: expected a schedule, got an empty function");
  WEFT_REQUIRE(options_.grad_clip >= 0, "Trainer: expected a grad_clip of at least 0, got ",
               options_.grad_clip);
  WEFT_REQUIRE(options_.check_replicas_every >= 0,
               "Trainer: expected a check_replicas_every of at least 0, got ", options_.check_replicas_every);
}

StepMetrics Trainer::BeginStep() {
  World& world = context_.world();
  world.ledger().Clear();
  world.allocator()->ResetPeak();
  optimizer_.ZeroGrad();  // of a step that failed before its update
  StepMetrics metrics;
  metrics.step = ++step_;
  metrics.lr = options_.schedule(metrics.step);
  context_.state().set_step(static_cast<uint64_t>(metrics.step));
  BeginCompression();
  return metrics;
}

// A step that makes no update leaves what methods of communication keep as it was: what they sent in it would be lost.
// Without a loss scale such steps are known before they send, but for one whose own norm is not finite; they alone cost a
// copy.
void Trainer::BeginCompression() {
  compresses_ = HasCompression(model_);
  if (!compresses_) return;
  if (options_.loss_scale != nullptr) return BeginScaledStep(model_, options_.loss_scale->value().Item());
  EndScaledStep(model_, /*applied=*/false);  // of a step that has thrown
  if (norm_before_.defined() && !std::isfinite(norm_before_.Item())) BeginScaledStep(model_, /*scale=*/1);
}

// The count is known behind BeginStep. Under a loss scale the step has begun already.
void Trainer::KeepCompression(const DTensor& total) {
  if (!compresses_ || options_.loss_scale != nullptr || total.Item() > 0) return;
  BeginScaledStep(model_, /*scale=*/1);
}

std::optional<StepMetrics> Trainer::Step(int64_t num_tokens, std::function<DTensor()> loss, bool stop) {
  const double begun = Now();
  StepMetrics metrics = BeginStep();
  metrics.num_tokens = num_tokens;
  RankState& state = context_.state();
  state.ResetCallNumbers();  // which a root's call does, and a loss may call its children alone
  DTensor value = loss();
  records_.Fetch();
  RunBackward(value);
  value = value.Detach();  // lets go of the tape
  return FinishStep(metrics, {.loss = value, .stop = stop}, begun,
                    ReplayOf(state, /*num_parts=*/1, [loss = std::move(loss)](int) { return loss(); }));
}

std::optional<StepMetrics> Trainer::Step(int microbatches, absl::FunctionRef<DTensor(int)> count,
                                         std::function<LossSum(int)> loss, bool stop) {
  CheckMicrobatches(microbatches);
  const double begun = Now();
  const StepMetrics metrics = BeginStep();
  const DTensor total = TotalCount(microbatches, count);
  KeepCompression(total);
  const DTensor divisor = Maximum(total, 1);  // sums over nothing are 0, and not 0 / 0
  const DTensor value = RunParts(microbatches, [&](int i) { return loss(i).Over(divisor); });
  return FinishStep(metrics, {.loss = value, .num_tokens = total, .stop = stop}, begun,
                    ReplayOf(context_.state(), microbatches, std::move(loss)));
}

std::optional<StepMetrics> Trainer::Step(int microbatches, absl::FunctionRef<int64_t(int)> rows,
                                         std::function<DTensor(int)> mean, bool stop) {
  CheckMicrobatches(microbatches);
  const double begun = Now();
  std::vector<int64_t> counts, begins;
  int64_t num_rows = 0;
  for (int i = 0; i < microbatches; ++i) {
    counts.push_back(rows(i));
    begins.push_back(num_rows);
    WEFT_REQUIRE(counts[i] >= 1, "Trainer::Step: expected at least one row in microbatch ", i, ", got ",
                 counts[i]);
    num_rows += counts[i];
  }
  StepMetrics metrics = BeginStep();
  metrics.num_tokens = num_rows;
  if (microbatches > 1 && context_.state().FirstWarning("Trainer: means of microbatches")) {
    context_.Warn(absl::StrCat(
        "Trainer::Step: the losses of ", microbatches,
        " microbatches are means and weigh by rows; where rows count different numbers of tokens, give "
        "sums: the count of each part (CountTargets) and a LossSum (CrossEntropy, MseLoss)"));
  }
  const auto total = static_cast<double>(num_rows);
  RankState& state = context_.state();
  auto part = [&state, begins = std::move(begins), mean = std::move(mean)](int i) {
    const BatchOffsetGuard offset(state, state.batch_offset() + begins[i]);
    return mean(i);
  };
  const DTensor value =
      RunParts(microbatches, [&](int i) { return Scale(part(i), static_cast<double>(counts[i]) / total); });
  return FinishStep(metrics, {.loss = value, .stop = stop}, begun,
                    ReplayOf(state, microbatches, std::move(part)));
}

std::optional<StepMetrics> Trainer::Step(PipelineExecutor& pipeline, std::vector<Microbatch> parts,
                                         bool stop) {
  WEFT_REQUIRE(&pipeline.model() == &model_,
               "Trainer::Step: the pipeline runs another model than the trainer's");
  WEFT_REQUIRE(!pipeline.updates(), "Trainer::Step: schedule ", pipeline.schedule().name,
               " updates within the step, stage by stage; the trainer updates at its end");
  const int microbatches = static_cast<int>(parts.size());
  CheckMicrobatches(microbatches);
  const double begun = Now();
  const StepMetrics metrics = BeginStep();
  const DTensor total =
      TotalCount(microbatches, [&](int i) { return pipeline.model().CountOf(parts[i].targets); });
  KeepCompression(total);
  const DTensor divisor = Maximum(total, 1);
  DTensor value;
  if (options_.loss_scale == nullptr) {
    value = pipeline.Run(parts, divisor);
  } else {
    // The last stage's backward begins at its quotient, so that is what is scaled.
    const DTensor& scale = options_.loss_scale->value();
    value = pipeline.Run(parts, Div(divisor, Cast(scale, divisor.dtype())));
    value = Mul(value, OnMeshOf(value, Div(1, Cast(scale, value.dtype()))));
  }
  records_.Fetch();
  RankState& state = context_.state();
  // Each microbatch says itself where it begins in the batch.
  const auto forward = [&pipeline, &state, fold = state.random_fold(), parts = std::move(parts)] {
    const FoldInGuard same(state, fold);
    pipeline.ForwardLoss(parts);
  };
  return FinishStep(metrics, {.loss = value, .num_tokens = total, .stop = stop}, begun, forward);
}

void Trainer::RunBackward(const DTensor& loss) {
  Backward(loss, options_.loss_scale != nullptr ? options_.loss_scale->Seed(loss) : DTensor());
}

DTensor Trainer::RunParts(int microbatches, absl::FunctionRef<DTensor(int)> part) {
  RankState& state = context_.state();
  DTensor sum;
  for (int i = 0; i < microbatches; ++i) {
    std::optional<NoSync> no_sync;
    if (i + 1 < microbatches) no_sync.emplace(state);
    state.ResetCallNumbers();
    const DTensor loss = part(i);
    records_.Fetch();
    RunBackward(loss);
    const NoGradGuard no_grad(state);
    sum = sum.defined() ? Add(sum, loss.Detach()) : loss.Detach();
  }
  return sum;
}

// Of all microbatches on all ranks.
DTensor Trainer::TotalCount(int microbatches, absl::FunctionRef<DTensor(int)> count) {
  const NoGradGuard no_grad(context_.state());
  const PurposeGuard purpose(context_.state(), Purpose::kLoss);
  DTensor total;
  for (int i = 0; i < microbatches; ++i) {
    const DTensor here = count(i);
    WEFT_REQUIRE(here.ndim() == 0, "Trainer::Step: expected a scalar for the count of microbatch ", i,
                 ", got ", here.ToString());
    total = total.defined() ? Add(total, here) : here;
  }
  // Integers do not divide.
  return Cast(total.Redistribute(Layout(/*ndim=*/0, context_.mesh().num_axes())), DType::kF64);
}

std::optional<StepMetrics> Trainer::FinishStep(const StepMetrics& metrics, StepValues values, double begun,
                                               std::function<void()> forward) {
  const bool is_gated = norm_before_.defined();
  const DTensor norm_squared = UpdateParameters(metrics.lr, values.num_tokens);
  values.norm_squared = OnMesh(IntrusivePtr<MeshContext>(&context_), norm_squared);
  if (options_.loss_scale != nullptr) values.loss_scale = options_.loss_scale->value();
  optimizer_.ZeroGrad();
  // Before this step's times are taken: on a device, where the host runs ahead, this is where it waits, for the
  // step before.
  const std::optional<StepMetrics> before = TakeRecord();
  values.seconds = Now() - begun;
  values.data_wait_s = std::exchange(data_wait_s_, 0);
  records_.Begin(metrics, values);
  issued_ = {.step = metrics.step, .forward = std::move(forward)};
  // An overflow under a loss scale is no reason to stop.
  if (options_.loss_scale == nullptr) norm_before_ = norm_squared;
  is_gated_ = is_gated;
  context_.world().CompareIssueOrder();
  const int64_t every = options_.check_replicas_every;
  if (every > 0 && metrics.step % every == 0) CompareReplicasOf(metrics.step);
  for (const TrainerCallback& callback : options_.callbacks) {
    if (before && callback.on_metrics) callback.on_metrics(*this, *before);
  }
  for (const TrainerCallback& callback : options_.callbacks) {
    if (callback.on_step_end) callback.on_step_end(*this, metrics.step);
  }
  return before;
}

// What residuals have sent is no gradient of a step that counts nothing. What is not finite stays so.
void Trainer::ZeroGradients() {
  const NoGradGuard no_grad(context_.state());
  for (Parameter* parameter : optimizer_.parameters()) {
    if (parameter->grad().defined()) parameter->SetGrad(Scale(parameter->grad(), 0));
  }
}

// Clips, updates, and returns the squared norm of the gradient.
DTensor Trainer::UpdateParameters(double lr, const DTensor& num_tokens) {
  if (compresses_ && num_tokens.defined() && num_tokens.Item() == 0) ZeroGradients();
  // Not to clip is to clip at infinity: a norm that is not finite skips the update there too.
  const double max_norm =
      options_.grad_clip > 0 ? options_.grad_clip : std::numeric_limits<double>::infinity();
  LossScale* const loss_scale = options_.loss_scale;
  const GlobalNorm norm = ComputeGlobalNorm(optimizer_.parameters(), max_norm,
                                            loss_scale != nullptr ? loss_scale->value() : DTensor(), &model_);
  const NoGradGuard no_grad(context_.state());
  // Adds a zero, or a NaN if the norm before was not finite: then the update skips itself.
  DTensor scale = norm_before_.defined() ? Add(norm.scale, Scale(norm_before_, 0)) : norm.scale;
  // Likewise 0 / 0 where nothing was counted.
  if (num_tokens.defined()) scale = Add(scale, Cast(Div(0, OnMeshOf(scale, num_tokens)), scale.dtype()));
  optimizer_.Step(lr, scale);
  if (compresses_) EndScaledStep(model_, std::isfinite(scale.Item()));
  if (loss_scale != nullptr) {
    const DTensor& value = loss_scale->value();
    loss_scale->Update(OnMeshOf(value, norm.norm_squared),
                       num_tokens.defined() ? OnMeshOf(value, num_tokens) : DTensor());
  }
  return norm.norm_squared;
}

// Of what this rank's part of the model has, over the ranks that have the same part, and of what several stages have.
void Trainer::CompareReplicasOf(int64_t step) {
  // First, since all ranks of the model are in it.
  ThrowIfDrifted(step, DriftOf(CompareStages()));
  // Frozen ones too, which the optimizer need not have; it may have others than the model's.
  std::vector<Parameter*> parameters = model_.AllParameters();
  parameters.insert(parameters.end(), optimizer_.parameters().begin(), optimizer_.parameters().end());
  std::vector<NamedValue> values;
  for (const Parameter* parameter : WithoutTiedNames(parameters)) {
    values.push_back({absl::StrCat("parameter '", parameter->path(), "'"), parameter->at_rest()});
  }
  for (const ModuleBuffer* buffer : model_.AllBuffers()) {
    values.push_back({absl::StrCat("buffer '", buffer->path(), "'"), buffer->Value()});
  }
  for (const auto& [name, state] : optimizer_.State()) {
    values.push_back({absl::StrCat("the optimizer's '", name, "'"), state});
  }
  std::string drift;
  if (!values.empty()) drift = DriftOf(CompareReplicas(*values[0].tensor.context()->DeviceSide(), values));
  if (PartsOf(model_) == nullptr) return ThrowIfDrifted(step, drift);
  // Ranks of other stages and parts would go on, and wait for those that have ended.
  for (const std::string& of_rank : GatherTexts(context_, drift)) ThrowIfDrifted(step, of_rank);
}

std::optional<ReplicaDifference> Trainer::CompareStages() {
  auto* const segmented = dynamic_cast<SegmentedModule*>(&model_);
  if (segmented == nullptr || !segmented->stages()) return std::nullopt;
  const std::vector<std::pair<std::string, DTensor>> states = optimizer_.State();
  std::vector<StagedValue> values;
  for (const auto& [parameter, indices] : ParametersOfSeveralStages(*segmented, *segmented->stages())) {
    const std::string path = parameter->path();
    StagedValue value = {.name = absl::StrCat("parameter '", path, "'")};
    StagedValue state = {.name = absl::StrCat("the optimizer's state of '", path, "'")};
    if (parameter->is_here()) value.tensors = {parameter->at_rest()};
    for (const auto& [name, tensor] : states) {
      if (absl::StartsWith(name, path + ".")) state.tensors.push_back(tensor);
    }
    values.push_back(std::move(value));
    values.push_back(std::move(state));
  }
  return CompareAcrossStages(*segmented->stages(), values);
}

std::optional<StepMetrics> Trainer::TakeRecord() {
  if (!records_.is_pending()) return std::nullopt;
  StepMetrics metrics = records_.Take();
  const bool is_finite = std::isfinite(metrics.grad_norm);
  metrics.updated = metrics.updated && is_finite && (was_finite_ || !is_gated_);
  was_finite_ = is_finite;
  recorded_ = std::move(issued_);
  last_record_ = metrics;
  return metrics;
}

std::optional<StepMetrics> Trainer::Flush() {
  const std::optional<StepMetrics> last = TakeRecord();
  norm_before_ = DTensor();
  for (const TrainerCallback& callback : options_.callbacks) {
    if (last && callback.on_metrics) callback.on_metrics(*this, *last);
  }
  return last;
}

void Trainer::FindNonFinite() {
  if (!recorded_.forward) {
    Throw(absl::StatusCode::kFailedPrecondition,
          "Trainer::FindNonFinite: no step has been recorded; call Flush after the first");
  }
  records_.group().Barrier();  // every rank has its record, and has told of it, before one throws
  RankState& state = context_.state();
  const NoGradGuard no_grad(state);
  RandomSnapshot of_step = state.random_snapshot();
  of_step.step = static_cast<uint64_t>(recorded_.step);
  const RandomScope random(state, std::move(of_step));
  std::vector<std::pair<ModuleBuffer*, DTensor>>
      buffers;  // running statistics: forward has taken the batch in already
  for (ModuleBuffer* buffer : model_.AllBuffers()) {
    if (buffer->materialized()) buffers.push_back({buffer, buffer->Value()});
  }
  const absl::Cleanup restore = [&] {
    for (const auto& [buffer, value] : buffers) buffer->Set(value);
  };
  try {
    for (const Parameter* parameter : optimizer_.parameters()) {
      CheckFinite(parameter->at_rest(), absl::StrCat("parameter '", parameter->path(), "'"));
    }
    const CheckFiniteGuard check_finite(state);
    recorded_.forward();
  } catch (const Error& error) {
    if (error.code() != absl::StatusCode::kDataLoss) throw;
    Throw(error.code(), "step ", recorded_.step, ": ", error.message());
  }
  records_.group().Barrier();  // ranks that found nothing wait for those that did
}

}  // namespace weft
