#include "parallel/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/optim/clip.h"

namespace weft {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What tells and agrees on things beside the training is not counted.
int64_t BytesWithoutMetrics(const Ledger& ledger) {
  int64_t num_bytes = 0;
  for (const LedgerEntry& entry : ledger.entries()) {
    if (entry.tag.purpose != static_cast<uint8_t>(Purpose::kMetric)) num_bytes += entry.num_bytes;
  }
  return num_bytes;
}

}  // namespace

Trainer::Trainer(Module& model, Optimizer& optimizer, TrainerOptions options)
    : context_(*model.context()), options_(std::move(options)), optimizer_(optimizer) {
  WEFT_REQUIRE(options_.schedule, "Trainer: expected a schedule, got an empty function");
  std::vector<int> ranks = context_.mesh().ranks();
  std::sort(ranks.begin(), ranks.end());
  metrics_group_ = context_.world().NewGroup("metrics", ranks);
}

StepMetrics Trainer::BeginStep() {
  World& world = context_.world();
  world.ledger().Clear();
  world.allocator()->ResetPeak();
  StepMetrics metrics;
  metrics.step = ++step_;
  metrics.lr = options_.schedule(metrics.step);
  context_.state().set_step(static_cast<uint64_t>(metrics.step));
  return metrics;
}

StepMetrics Trainer::Step(int64_t num_tokens, absl::FunctionRef<DTensor()> loss, bool stop) {
  const double begun = Now();
  StepMetrics metrics = BeginStep();
  DTensor value = loss();
  Backward(value);
  value = value.Detach();  // lets go of the tape
  FinishStep(
      value, begun, [&] { return static_cast<double>(num_tokens); }, stop, &metrics);
  return metrics;
}

StepMetrics Trainer::Step(int microbatches, absl::FunctionRef<DTensor(int)> count,
                          absl::FunctionRef<LossSum(int)> loss, bool stop) {
  WEFT_REQUIRE(microbatches >= 1, "Trainer::Step: expected at least one microbatch, got ", microbatches);
  const double begun = Now();
  StepMetrics metrics = BeginStep();
  RankState& state = context_.state();
  const DTensor total = TotalCount(microbatches, count);
  DTensor value;
  for (int i = 0; i < microbatches; ++i) {
    std::optional<NoSync> no_sync;
    if (i + 1 < microbatches) no_sync.emplace(state);
    const DTensor part = loss(i).Over(total);
    Backward(part);
    const NoGradGuard no_grad(state);
    value = value.defined() ? Add(value, part.Detach()) : part.Detach();
  }
  FinishStep(
      value, begun, [&] { return total.Item(); }, stop, &metrics);
  return metrics;
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
  return total.Redistribute(Layout(/*ndim=*/0, context_.mesh().num_axes()));
}

void Trainer::FinishStep(const DTensor& value, double begun, absl::FunctionRef<double()> tokens, bool stop,
                         StepMetrics* metrics) {
  World& world = context_.world();
  // Not to clip is to clip at infinity: a norm that is not finite skips the update there too.
  const double max_norm =
      options_.grad_clip > 0 ? options_.grad_clip : std::numeric_limits<double>::infinity();
  const GlobalNorm norm = ComputeGlobalNorm(optimizer_.parameters(), max_norm);
  optimizer_.Step(metrics->lr, norm.scale);
  optimizer_.ZeroGrad();

  metrics->loss = value.Item();
  metrics->grad_norm = std::sqrt(norm.norm_squared.ToLocal().ToVector<double>()[0]);
  metrics->comm_bytes = BytesWithoutMetrics(world.ledger());
  metrics->peak_bytes = world.allocator()->stats().peak_bytes;
  const double seconds = Now() - begun;
  metrics->step_ms = seconds * 1e3;
  metrics->tokens_per_s = tokens() / seconds;
  ReduceOverRanks(metrics, seconds, stop);
  for (const TrainerCallback& callback : options_.callbacks) {
    if (callback.on_metrics) callback.on_metrics(*this, *metrics);
  }
  for (const TrainerCallback& callback : options_.callbacks) {
    if (callback.on_step_end) callback.on_step_end(*this, metrics->step);
  }
}

void Trainer::ReduceOverRanks(StepMetrics* metrics, double seconds, bool stop) {
  const PurposeGuard purpose(context_.state(), Purpose::kMetric);
  const Ledger& ledger = context_.world().ledger();
  const Ledger::Exposed exposed = ledger.exposed();
  // A device's streams report no more than the sum of their operations' times.
  const bool on_host = context_.allocator()->device().type == DeviceType::kCpu;
  const double busy = on_host ? ledger.busy_seconds() : ledger.seconds();
  const double sums[] = {static_cast<double>(metrics->comm_bytes), std::min(1.0, busy / seconds),
                         exposed.seconds() / seconds, exposed.waiting_seconds / seconds};
  const double maxima[] = {static_cast<double>(metrics->peak_bytes), stop ? 1.0 : 0.0};
  const auto reduce = [&](absl::Span<const double> values, ReduceOp op) {
    const Tensor tensor = Tensor::FromValues<double>(
        {std::ssize(values)}, std::vector<double>(values.begin(), values.end()), context_.allocator());
    metrics_group_->AllReduce(tensor, tensor, op, {.tag = context_.state().tag()}).Wait();
    return tensor.ToVector<double>();
  };
  const std::vector<double> sum = reduce(sums, ReduceOp::kSum);
  const std::vector<double> max = reduce(maxima, ReduceOp::kMax);
  metrics->comm_bytes = static_cast<int64_t>(sum[0]);
  metrics->comm_fraction = sum[1] / metrics_group_->size();
  metrics->exposed_fraction = sum[2] / metrics_group_->size();
  metrics->waiting_fraction = sum[3] / metrics_group_->size();
  metrics->peak_bytes = static_cast<int64_t>(max[0]);
  metrics->stop = max[1] > 0;
}

void Trainer::FindNonFinite(absl::FunctionRef<DTensor()> loss) {
  RankState& state = context_.state();
  const NoGradGuard no_grad(state);
  try {
    for (const Parameter* parameter : optimizer_.parameters()) {
      CheckFinite(parameter->at_rest(), absl::StrCat("parameter '", parameter->path(), "'"));
    }
    const CheckFiniteGuard check_finite(state);
    loss();
  } catch (const Error& error) {
    if (error.code() != absl::StatusCode::kDataLoss) throw;
    Throw(error.code(), "step ", step_, ": ", error.message());
  }
  metrics_group_->Barrier();  // ranks that found nothing wait for those that did
}

}  // namespace weft
