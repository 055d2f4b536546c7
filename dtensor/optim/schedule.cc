#include "dtensor/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/base/error.h"

namespace weft {
namespace {

// What is left of the way from 1 to 0 after the share x of a cosine.
double CosineLeft(double x) { return 0.5 * (1 + std::cos(std::numbers::pi * x)); }

bool IsWarmup(int64_t step, int64_t warmup_steps) { return warmup_steps > 0 && step <= warmup_steps; }

double WarmupAt(double peak, int64_t step, int64_t warmup_steps, WarmupShape shape) {
  if (shape == WarmupShape::kLinear) {
    return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  const auto steps = static_cast<double>(std::max<int64_t>(warmup_steps, 2));
  return peak * std::min(1.0, std::log(static_cast<double>(step + 1)) / std::log(steps));
}

// The step that has the whole peak: the last of the warm-up, or the first of all.
int64_t PeakStep(int64_t warmup_steps) { return std::max<int64_t>(warmup_steps, 1); }

// The share of the steps from `start` to `end` that have passed at `step`, which lies between them.
double Progress(int64_t start, int64_t step, int64_t end) {
  return static_cast<double>(step - start) / static_cast<double>(end - start);
}

double Left(DecayShape decay, double x) {
  switch (decay) {
    case DecayShape::kLinear:
      return 1 - x;
    case DecayShape::kCosine:
      return CosineLeft(x);
    case DecayShape::kRoot:
      return 1 - std::sqrt(x);
  }
  return 0;
}

}  // namespace

double WarmupCosine::At(int64_t step) const {
  if (IsWarmup(step, warmup_steps)) return WarmupAt(peak, step, warmup_steps, warmup);
  if (step == 0) return peak;
  if (step >= total_steps) return floor;
  return floor + (peak - floor) * CosineLeft(Progress(PeakStep(warmup_steps), step, total_steps));
}

double WarmupLinear::At(int64_t step) const {
  if (IsWarmup(step, warmup_steps)) return WarmupAt(peak, step, warmup_steps, warmup);
  if (step == 0) return peak;
  if (step >= total_steps) return floor;
  return peak + (floor - peak) * Progress(PeakStep(warmup_steps), step, total_steps);
}

double WarmupStableDecay::At(int64_t step) const {
  if (IsWarmup(step, warmup_steps)) return WarmupAt(peak, step, warmup_steps, warmup);
  const int64_t decay_start = std::max(total_steps - decay_steps, warmup_steps);
  if (step <= decay_start) return peak;
  if (step >= total_steps) return floor;
  return floor + (peak - floor) * Left(decay, Progress(decay_start, step, total_steps));
}

double WarmRestarts::At(int64_t step) const {
  WEFT_REQUIRE(first_period >= 1 && growth >= 1,
               "WarmRestarts: expected a first period and a growth of 1 or more, got ", first_period, " and ",
               growth);
  if (IsWarmup(step, warmup_steps)) return WarmupAt(peak, step, warmup_steps, warmup);
  int64_t passed = std::max<int64_t>(step - PeakStep(warmup_steps), 0);
  int64_t period = first_period;
  if (growth == 1) passed %= period;
  while (passed >= period) {
    passed -= period;
    period *= growth;
  }
  return floor + (peak - floor) * CosineLeft(Progress(0, passed, period));
}

double OneCycle::At(int64_t step) const {
  WEFT_REQUIRE(phases == 2 || phases == 3, "OneCycle: expected 2 or 3 phases, got ", phases);
  WEFT_REQUIRE(pct_start >= 0 && pct_start <= 1, "OneCycle: expected a pct_start between 0 and 1, got ",
               pct_start);
  WEFT_REQUIRE(div_factor > 0 && final_div_factor > 0,
               "OneCycle: expected a div_factor and a final_div_factor above 0, got ", div_factor, " and ",
               final_div_factor);
  const double first = peak / div_factor;
  const double last = first / final_div_factor;
  const double last_epoch = static_cast<double>(total_steps - 1);
  const double epoch = std::clamp(static_cast<double>(step - 1), 0.0, std::max(last_epoch, 0.0));
  struct Phase {
    double start, end;  // learning rates
    double end_epoch;
  };
  // Ends lie between steps, where the shares say so.
  const double up = pct_start * static_cast<double>(total_steps);
  const Phase two[] = {{first, peak, up - 1}, {peak, last, last_epoch}};
  const Phase three[] = {{first, peak, up - 1}, {peak, first, 2 * up - 2}, {first, last, last_epoch}};
  double start_epoch = 0;
  for (int i = 0;; ++i) {
    const Phase& phase = phases == 2 ? two[i] : three[i];
    if (epoch > phase.end_epoch && i + 1 < phases) {
      start_epoch = phase.end_epoch;
      continue;
    }
    const double length = phase.end_epoch - start_epoch;
    const double x = length > 0 ? (epoch - start_epoch) / length : 1;  // a run of one step has its end
    if (anneal == Anneal::kLinear) return phase.start + (phase.end - phase.start) * x;
    return phase.end + (phase.start - phase.end) * CosineLeft(x);
  }
}

}  // namespace weft
