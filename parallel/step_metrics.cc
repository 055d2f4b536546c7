#include "parallel/step_metrics.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "mesh/redistribution/mesh_transfer.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// What is summed over the ranks. A maximum needs another reduction: each rank has places of its own after these,
// which the others leave zero: one for its bytes, and after those of all ranks one for its wait for data.
enum Place : int {
  kLoss,
  kNormSquared,
  kTokens,
  kLossScale,
  kCommBytes,
  kCommBusy,
  kExposed,
  kWaiting,
  kStop,
  kNumPlaces
};

// What tells and agrees on things beside the training is not counted.
int64_t BytesWithoutMetrics(const Ledger& ledger) {
  int64_t num_bytes = 0;
  for (const LedgerEntry& entry : ledger.entries()) {
    if (entry.tag.purpose != static_cast<uint8_t>(Purpose::kMetric)) num_bytes += entry.num_bytes;
  }
  return num_bytes;
}

// Whether this rank's piece belongs into a sum over all ranks: of replicas one does.
bool IsAddend(MeshContext& context, const Layout& layout) {
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (!layout.IsPartial(axis) && context.coordinate()[axis] != 0) return false;
  }
  return true;
}

// A scalar whose pieces add up to it.
DTensor AsSum(const DTensor& scalar) {
  return AddsUp(scalar.layout()) ? scalar : scalar.Redistribute(WithoutPartial(scalar.layout()));
}

}  // namespace

StepMetricsReduction::StepMetricsReduction(MeshContext& context) : context_(context) {
  std::vector<int> ranks = context.mesh().ranks();
  std::sort(ranks.begin(), ranks.end());
  group_ = context.world().NewGroup("metrics", ranks);
  group_->SetInBackground();
}

void StepMetricsReduction::Begin(const StepMetrics& known, const StepValues& values) {
  RankState& state = context_.state();
  const PurposeGuard purpose(state, Purpose::kMetric);
  const int64_t num_bytes = BytesWithoutMetrics(context_.world().ledger());
  const Ledger& ledger = context_.world().ledger();
  const Ledger::Exposed exposed = ledger.exposed();
  // A device's streams report no more than the sum of their operations' times.
  const bool on_host = context_.allocator()->device().type == DeviceType::kCpu;
  const double busy = on_host ? ledger.busy_seconds() : ledger.seconds();

  const Tensor sums = Tensor::Empty(context_.allocator(), DType::kF64, {kNumPlaces + 2 * group_->size()});
  FillTensor(sums, 0);
  const auto at = [&](int place) { return sums.Slice(/*dim=*/0, place, /*length=*/1); };
  const auto set = [&](int place, const DTensor& scalar) {
    const DTensor sum = AsSum(scalar);
    if (IsAddend(context_, sum.layout())) CopyTensor(sum.ToLocal().Reshape({1}), at(place));
  };
  set(kLoss, values.loss);
  set(kNormSquared, values.norm_squared);
  if (values.num_tokens.defined()) set(kTokens, values.num_tokens);
  if (values.loss_scale.defined()) set(kLossScale, values.loss_scale);
  FillTensor(at(kCommBytes), static_cast<double>(num_bytes));
  FillTensor(at(kCommBusy), std::min(1.0, busy / values.seconds));
  FillTensor(at(kExposed), exposed.seconds() / values.seconds);
  FillTensor(at(kWaiting), exposed.waiting_seconds / values.seconds);
  FillTensor(at(kStop), values.stop ? 1 : 0);
  FillTensor(at(kNumPlaces + group_->rank()),
             static_cast<double>(context_.world().allocator()->stats().peak_bytes));
  FillTensor(at(kNumPlaces + group_->size() + group_->rank()), values.data_wait_s);

  pending_ = {.known = known, .sums = sums, .work = Work()};
  pending_->known.step_ms = values.seconds * 1e3;
  if (values.num_tokens.defined()) pending_->known.num_tokens = -1;  // what is summed says it
  if (group_->size() == 1) return;                                   // summed already
  // The gradients' worker: every rank has issued this before it issues the next step's.
  Worker* const worker = on_host ? &state.LaneWorker(Lane::kGrad) : nullptr;
  pending_->work =
      group_->AllReduce(sums, sums, ReduceOp::kSum, {.async = true, .tag = state.tag(), .worker = worker});
}

void StepMetricsReduction::Fetch() {
  if (!pending_ || pending_->is_fetched || pending_->sums.device().type == DeviceType::kCpu) return;
  pending_->work.Wait();  // the device's stream does
  host_copy_.Begin(pending_->sums);
  pending_->is_fetched = true;
}

StepMetrics StepMetricsReduction::Take() {
  Fetch();
  Pending pending = *std::exchange(pending_, std::nullopt);
  if (!pending.is_fetched) {
    pending.work.Wait();
    host_copy_.Begin(pending.sums);
  }
  const std::vector<double> sums = host_copy_.Wait().ToVector<double>();
  context_.world().ThrowIfCutOff();
  const double num_ranks = group_->size();
  StepMetrics metrics = pending.known;
  metrics.loss = sums[kLoss];
  metrics.grad_norm = std::sqrt(sums[kNormSquared]);
  metrics.loss_scale = sums[kLossScale];
  metrics.finite = std::isfinite(metrics.loss) && std::isfinite(metrics.grad_norm);
  if (metrics.num_tokens < 0) {
    metrics.num_tokens = std::llround(sums[kTokens]);
    metrics.updated = metrics.num_tokens > 0;
  }
  metrics.tokens_per_s = static_cast<double>(metrics.num_tokens) / (metrics.step_ms * 1e-3);
  metrics.comm_bytes = std::llround(sums[kCommBytes]);
  metrics.comm_fraction = sums[kCommBusy] / num_ranks;
  metrics.exposed_fraction = sums[kExposed] / num_ranks;
  metrics.waiting_fraction = sums[kWaiting] / num_ranks;
  metrics.stop = sums[kStop] > 0;
  const auto waits = sums.begin() + kNumPlaces + group_->size();
  metrics.peak_bytes = std::llround(*std::max_element(sums.begin() + kNumPlaces, waits));
  metrics.data_wait_s = *std::max_element(waits, sums.end());
  return metrics;
}

bool StepMetricsReduction::AnyRank(bool is_so) {
  const PurposeGuard purpose(context_.state(), Purpose::kMetric);
  const Tensor count = Tensor::Empty(context_.allocator(), DType::kF64, {1});
  FillTensor(count, is_so ? 1 : 0);
  group_->AllReduce(count, count, ReduceOp::kSum, {.tag = context_.state().tag()}).Wait();
  HostCopy copy;
  copy.Begin(count);
  return copy.Wait().ToVector<double>()[0] > 0;
}

}  // namespace weft
