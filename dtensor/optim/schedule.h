#ifndef WEFT_DTENSOR_OPTIM_SCHEDULE_H_
#define WEFT_DTENSOR_OPTIM_SCHEDULE_H_

#include <cstdint>
#include <functional>

namespace weft {

// The learning rate of step 1, 2, ...: any function of the step, the same on every rank. Those below are
// functions of the step alone, so a run that is resumed needs nothing but the step; plateau.h has one with a
// state. PyTorch's schedulers count from epoch 0: step t has the learning rate of epoch t - 1.
using Schedule = std::function<double(int64_t step)>;

// How a warm-up of so many steps grows, by the share of the peak that step t has.
enum class WarmupShape : uint8_t {
  kLinear,  // t / steps
  kLog,  // log(t + 1) / log(steps), at most 1: fast at first, and with the peak a step before the last; steps are at least 2
};

// A warm-up, then a cosine from `peak` down to `floor`.
struct WarmupCosine {
  double peak = 1e-3;
  double floor = 1e-4;
  int64_t warmup_steps = 100;
  int64_t total_steps = 2000;

  WarmupShape warmup = WarmupShape::kLinear;

  // The learning rate of step 1, 2, ..., total_steps. The first of a linear warm-up is peak / warmup_steps, step `warmup_steps`
  // has the peak, the last and all after it the floor. Without warm-up, step 1 starts the cosine at the peak.
  // Step 0, before the first, has what the first step comes from: 0, or without warm-up the peak.
  // Source: kLog: DeepSpeed's WarmupLR of warmup_type log, whose first step has the rate of step 0 here.
  double At(int64_t step) const;
  double operator()(int64_t step) const { return At(step); }

  bool operator==(const WarmupCosine&) const = default;
};

// A warm-up as WarmupCosine's, then a straight line down to `floor`, which the last step has, and all
// after it.
// Source: without warm-up PyTorch's LinearLR of start_factor 1, end_factor floor / peak and total_iters
//         total_steps - 1; the linear warm-up is its LinearLR from 1 / warmup_steps to 1 in warmup_steps - 1.
struct WarmupLinear {
  double peak = 1e-3;
  double floor = 0;
  int64_t warmup_steps = 100;
  int64_t total_steps = 2000;
  WarmupShape warmup = WarmupShape::kLinear;

  double At(int64_t step) const;
  double operator()(int64_t step) const { return At(step); }

  bool operator==(const WarmupLinear&) const = default;
};

// How the last part of WarmupStableDecay falls, by the share x of it that has passed, from 1 to 0.
enum class DecayShape : uint8_t {
  kLinear,  // 1 - x
  kCosine,  // (1 + cos(pi x)) / 2
  kRoot,    // 1 - sqrt(x)
};

// WSD: a warm-up as WarmupCosine's, then `peak`, then down to `floor` in the last `decay_steps` steps:
// step total_steps - decay_steps is the last that has the peak, the last step and all after it have the
// floor. The steps before the decay do not know how long the run is, so a checkpoint of one of them serves
// runs of several lengths.
// Source: Hu et al., "MiniCPM", arXiv 2404.06395; the root: Haegele et al., "Scaling laws and compute-optimal
//         training beyond fixed training durations", arXiv 2405.18392.
struct WarmupStableDecay {
  double peak = 1e-3;
  double floor = 0;
  int64_t warmup_steps = 100;
  int64_t decay_steps = 400;
  int64_t total_steps = 2000;
  DecayShape decay = DecayShape::kRoot;
  WarmupShape warmup = WarmupShape::kLinear;

  double At(int64_t step) const;
  double operator()(int64_t step) const { return At(step); }

  bool operator==(const WarmupStableDecay&) const = default;
};

// Cosines from `peak` down to `floor`, over and over: the first takes `first_period` steps, each other
// `growth` times as many as the one before. The step after a period has the peak again. A warm-up as
// WarmupCosine's comes first; the first period begins with the step that has the whole peak.
// Source: without warm-up PyTorch's CosineAnnealingWarmRestarts (T_0, T_mult, eta_min). Loshchilov and
//         Hutter, "SGDR", arXiv 1608.03983.
struct WarmRestarts {
  double peak = 1e-3;
  double floor = 0;
  int64_t warmup_steps = 0;
  int64_t first_period = 500;
  int64_t growth = 1;
  WarmupShape warmup = WarmupShape::kLinear;

  // Errors: InvalidArgument for a period or a growth below 1.
  double At(int64_t step) const;
  double operator()(int64_t step) const { return At(step); }

  bool operator==(const WarmRestarts&) const = default;
};

// Up from peak / div_factor to `peak` in the first `pct_start` of the steps, then down to peak / div_factor /
// final_div_factor; in three phases, down to where it began in as many steps as it took up, and the rest
// from there. Momentum stays as it is.
// Source: PyTorch's OneCycleLR with cycle_momentum=False. Smith and Topin, "Super-convergence", arXiv
//         1708.07120.
struct OneCycle {
  enum class Anneal : uint8_t { kCosine, kLinear };

  double peak = 1e-3;
  int64_t total_steps = 2000;
  double pct_start = 0.3;
  double div_factor = 25;
  double final_div_factor = 1e4;
  Anneal anneal = Anneal::kCosine;
  int phases = 2;  // or 3

  // The learning rate of step 1, 2, ..., total_steps; of those after it that of the last, of step 0 that of
  // the first.
  // Errors: InvalidArgument for another number of phases, a pct_start outside [0, 1], or a factor that is not above 0.
  double At(int64_t step) const;
  double operator()(int64_t step) const { return At(step); }

  bool operator==(const OneCycle&) const = default;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_SCHEDULE_H_
