#include "examples/gpt/gpt_optimizer.h"

#include <algorithm>
#include <limits>

#include "dtensor/optim/adafactor.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/adamw_8bit.h"
#include "dtensor/optim/lamb.h"
#include "dtensor/optim/lion.h"
#include "dtensor/optim/muon.h"
#include "dtensor/optim/sgd.h"

namespace weft {
namespace {

std::vector<ParameterGroup> BlockMatrices() {
  return {{.path = "blocks.*.attn.qkv.weight", .matrix = "iboo"},
          {.path = "blocks.*.attn.proj.weight", .matrix = "iio"},
          {.path = "blocks.*.mlp.*.weight", .matrix = "io"}};
}

}  // namespace

std::unique_ptr<Optimizer> MakeGptOptimizer(const GptRun& run, const std::vector<Parameter*>& parameters) {
  const double beta1 = run.adamw.beta1, beta2 = run.adamw.beta2, decay = run.adamw.weight_decay;
  if (run.optimizer == "sgd") {
    return std::make_unique<Sgd>(
        parameters,
        SgdOptions{.momentum = beta1, .nesterov = run.nesterov && beta1 > 0, .weight_decay = decay});
  }
  if (run.optimizer == "lion") {
    return std::make_unique<Lion>(parameters,
                                  LionOptions{.beta1 = beta1, .beta2 = beta2, .weight_decay = decay});
  }
  if (run.optimizer == "lamb") {
    LambOptions lamb = {.beta1 = beta1, .beta2 = beta2, .weight_decay = decay};
    if (run.eps > 0) lamb.eps = run.eps;
    return std::make_unique<Lamb>(parameters, lamb);
  }
  if (run.optimizer == "adafactor") {
    return std::make_unique<Adafactor>(parameters, AdafactorOptions{.weight_decay = decay});
  }
  if (run.optimizer == "muon") {
    return std::make_unique<Muon>(parameters, MuonOptions{.weight_decay = decay,
                                                          .adjust = MuonAdjust::kMatchRmsAdamW,
                                                          .adamw = run.adamw,
                                                          .groups = BlockMatrices()});
  }
  if (run.optimizer == "adamw8bit") {
    return std::make_unique<AdamW8Bit>(
        parameters,
        AdamW8BitOptions{.beta1 = beta1, .beta2 = beta2, .eps = run.adamw.eps, .weight_decay = decay});
  }
  WEFT_REQUIRE(run.optimizer == "adamw", "no optimizer '", run.optimizer, "'");
  return std::make_unique<AdamW>(parameters, run.adamw);
}

Schedule MakeGptSchedule(const GptRun& run) {
  const WarmupCosine& s = run.schedule;
  if (run.schedule_lr == "constant") {
    return WarmupLinear{s.peak, s.peak, s.warmup_steps, s.total_steps, s.warmup};
  }
  if (run.schedule_lr == "linear") {
    return WarmupLinear{s.peak, s.floor, s.warmup_steps, s.total_steps, s.warmup};
  }
  if (run.schedule_lr == "wsd") {
    return WarmupStableDecay{.peak = s.peak,
                             .floor = s.floor,
                             .warmup_steps = s.warmup_steps,
                             .decay_steps = s.total_steps / 5,
                             .total_steps = s.total_steps,
                             .warmup = s.warmup};
  }
  if (run.schedule_lr == "one_cycle") {
    OneCycle cycle = {.peak = s.peak, .total_steps = s.total_steps};
    cycle.pct_start = std::min(1.0, static_cast<double>(s.warmup_steps) / static_cast<double>(s.total_steps));
    // Of a peak of 0, too, a floor of 0 is a rate of 0.
    cycle.final_div_factor =
        s.floor > 0 ? s.peak / cycle.div_factor / s.floor : std::numeric_limits<double>::infinity();
    return cycle;
  }
  if (run.schedule_lr == "warm_restarts") {
    return WarmRestarts{.peak = s.peak,
                        .floor = s.floor,
                        .warmup_steps = s.warmup_steps,
                        .first_period = std::max<int64_t>((s.total_steps - s.warmup_steps + 4) / 4, 1),
                        .warmup = s.warmup};
  }
  WEFT_REQUIRE(run.schedule_lr == "cosine", "no schedule '", run.schedule_lr, "'");
  return s;
}

}  // namespace weft
