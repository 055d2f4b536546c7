#include "parallel/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "dtensor/autograd/backward.h"

namespace weft {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Trainer::Trainer(Module& model, const TrainerOptions& options)
    : context_(*model.context()), options_(options), optimizer_(model.AllParameters(), options.adamw) {
  std::vector<int> ranks = context_.mesh().ranks();
  std::sort(ranks.begin(), ranks.end());
  metrics_group_ = context_.world().NewGroup("metrics", ranks);
}

StepMetrics Trainer::Step(int64_t num_tokens, absl::FunctionRef<DTensor()> loss, bool stop) {
  const double start = Now();
  World& world = context_.world();
  world.ledger().Clear();
  world.allocator()->ResetPeak();
  StepMetrics metrics;
  metrics.step = ++step_;
  metrics.lr = options_.schedule.At(metrics.step);
  context_.state().set_step(static_cast<uint64_t>(metrics.step));

  DTensor value = loss();
  Backward(value);
  value = value.Detach();  // lets go of the tape
  // Not to clip is to clip at infinity: a norm that is not finite skips the update there too.
  const double max_norm =
      options_.grad_clip > 0 ? options_.grad_clip : std::numeric_limits<double>::infinity();
  const GlobalNorm norm = ComputeGlobalNorm(optimizer_.parameters(), max_norm);
  optimizer_.Step(metrics.lr, norm.scale);
  optimizer_.ZeroGrad();

  metrics.loss = value.Item();
  metrics.grad_norm = std::sqrt(norm.norm_squared.ToLocal().ToVector<double>()[0]);
  metrics.comm_bytes = world.ledger().num_bytes();
  metrics.peak_bytes = world.allocator()->stats().peak_bytes;
  const double seconds = Now() - start;
  metrics.step_ms = seconds * 1e3;
  metrics.tokens_per_s = static_cast<double>(num_tokens) / seconds;
  ReduceOverRanks(&metrics, world.ledger().seconds(), seconds, stop);
  return metrics;
}

void Trainer::ReduceOverRanks(StepMetrics* metrics, double comm_seconds, double seconds, bool stop) {
  const PurposeGuard purpose(context_.state(), Purpose::kMetric);
  const double sums[] = {static_cast<double>(metrics->comm_bytes), comm_seconds / seconds};
  const double maxima[] = {static_cast<double>(metrics->peak_bytes), stop ? 1.0 : 0.0};
  const auto reduce = [&](const double(&values)[2], ReduceOp op) {
    const Tensor tensor = Tensor::FromValues<double>({2}, values, context_.allocator());
    metrics_group_->AllReduce(tensor, tensor, op, {.tag = context_.state().tag()}).Wait();
    return tensor.ToVector<double>();
  };
  const std::vector<double> sum = reduce(sums, ReduceOp::kSum);
  const std::vector<double> max = reduce(maxima, ReduceOp::kMax);
  metrics->comm_bytes = static_cast<int64_t>(sum[0]);
  metrics->comm_fraction = sum[1] / metrics_group_->size();
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
